"""check, deploy, scale, connect, archive, destroy, inventory: what exists in AWS."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from environments.environment import Environment
from environments.notes import notes
from ops.deploy_lock import deploy_lock
from ops.errors import CloudError, InvalidInputError, RefusedError
from ops.options import Call, EnvironmentArgument, JsonOption, LocalOption, YesOption
from ops.price import estimate

if TYPE_CHECKING:
    from ops.aws.access import Aws
    from ops.aws.inventory import Item

SCALE_LIMIT_S = 1800.0
EXPORT_LIMIT_S = 4 * 3600.0
NodesArgument = Annotated[int, typer.Argument(metavar="N", min=0, help="GPU nodes from now on.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command(epilog="**Example:** `steadfast check two-node-p5`")(check)
    app.command(epilog="**Example:** `steadfast deploy two-node-p5`")(deploy)
    app.command(epilog="**Example:** `steadfast scale two-node-p5 2`")(scale)
    app.command(epilog="**Example:** `steadfast connect two-node-p5`")(connect)
    app.command(epilog="**Example:** `steadfast archive two-node-p5`")(archive)
    app.command(epilog="**Example:** `steadfast destroy two-node-p5 --yes`")(destroy)
    app.command(epilog="**Example:** `steadfast inventory two-node-p5`")(inventory)


def check(
    environment: EnvironmentArgument,
    write: Annotated[bool, typer.Option("--write", help="Write the reservation's zone into the file.")] = False,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Instead: an all-reduce on the nodes, against bars.")
    ] = False,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Everything that would fail later, before money is spent, and the price.

    With --nodes an all-reduce over the nodes that are up; 5 if a size is below the instance table's bar.
    """
    from ops.aws import check as checks
    from ops.aws.access import Aws, using_aws

    if nodes:
        _check_nodes(Call.of(environment, local=local, as_json=as_json))
        return
    call = Call.of(environment, local=local, as_json=as_json)
    with using_aws(call) as aws:
        if write:
            _write_zone(call, checks.reservation(aws))
            call = Call.of(environment, local=local, as_json=as_json)
            aws = Aws(call.environment, aws.session)
        findings = checks.ask(aws)
    price, remarks = estimate(call.environment), notes(call.environment)

    def words(console: Console) -> None:
        checks.show(console, findings)
        for remark in remarks:
            console.print(escape(f"note: {remark}"))
        price.show(console)

    result = {"findings": checks.as_dicts(findings), "notes": remarks, "price": price.as_dict()}
    call.output.result(result, words)
    if failed := checks.failed(findings):
        raise RefusedError(f"{len(failed)} of {len(findings)} checks failed")


def _check_nodes(call: Call) -> None:
    from ops.node_check import check_nodes
    from ops.worlds import open_world

    with open_world(call, bring_up=True) as world, call.output.working("all-reduce over the nodes"):
        found = check_nodes(world)
    call.output.result(found.as_dict(), found.show)
    if not found.good:
        raise CloudError(f"the nodes of {call.environment.name} are not as fast as they should be")


def _write_zone(call: Call, reservation: dict[str, Any] | None) -> None:
    from environments.files import write_value
    from environments.rules.place import ZONE_UNKNOWN

    if reservation is None:
        raise InvalidInputError("--write: the environment has no reservation that decides its zone")
    if call.environment.availability_zone != ZONE_UNKNOWN:
        return
    write_value(call.path, "availability_zone", reservation["AvailabilityZone"])
    call.output.say(f"{call.path}: availability_zone: {reservation['AvailabilityZone']}")


def deploy(
    environment: EnvironmentArgument,
    local: LocalOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deploy every stack in order. GPU nodes start at 0; `scale` brings them."""
    from ops.aws import check as checks
    from ops.aws.access import using_aws
    from ops.aws.deploy import deploy as deploy_stacks

    call = Call.of(environment, local=local, as_json=as_json, yes=yes)
    price = estimate(call.environment)
    _ask_price(call, f"Deploy {call.environment.name} for USD {price.deployed_usd_h:,.2f} an hour?")
    with deploy_lock(call), using_aws(call) as aws:
        if failed := checks.failed(checks.ask(aws)):
            details = [f"{item.question}: {item.answer}" for item in failed]
            raise RefusedError("nothing was deployed", details=details)
        _keep_up(call)
        outputs = deploy_stacks(aws, call.state, call.output.say, lambda: _refuse_under_a_run(call))
        if call.environment.plugins == "by-cli":
            _apply_plugins(call, outputs)
    call.output.result(
        {"environment": call.environment.name, "outputs": outputs},
        lambda console: console.print(f"{call.environment.name} is deployed; now `steadfast connect`, `scale`"),
    )


def _keep_up(call: Call) -> None:
    """Stacks, even those that fail, are there until `destroy`."""
    if call.local:
        from ops.local.holders import Part
        from ops.local_use import keep_up

        keep_up(call, *Part)


def _apply_plugins(call: Call, outputs: dict[str, Any]) -> None:
    """What the cluster stack leaves to us: device plugins, namespace, volumes."""
    from k8s.cluster_charts import LustreVolume
    from ops.synth import cluster_documents
    from ops.worlds import open_world

    made = outputs["storage"]
    volume = LustreVolume(made["FileSystemId"], made["FileSystemDnsName"], made["FileSystemMountName"])
    with open_world(call) as world:
        world.cluster.apply(cluster_documents(call.environment, volume))
    call.output.say("applied device plug-ins, namespace and volumes")


def _ask_price(call: Call, question: str) -> None:
    """The emulated AWS costs nothing."""
    if not call.local:
        call.output.confirm(question)


def scale(
    environment: EnvironmentArgument,
    nodes: NodesArgument,
    local: LocalOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set the number of GPU nodes. Refuses to take nodes from a run that is under way."""
    from ops.aws.access import using_aws

    call = Call.of(environment, local=local, as_json=as_json, yes=yes)
    _check_size(call.environment, nodes)
    with using_aws(call) as aws:
        reached = _scale(call, aws, nodes)
    result = {"environment": call.environment.name, "nodes": reached}
    call.output.result(result, lambda console: console.print(f"{call.environment.name}: {reached} GPU nodes"))


def _scale(call: Call, aws: Aws, nodes: int) -> int:
    from ops.aws.eks import node_group
    from ops.aws.eks import scale as scale_group

    group = node_group(aws)
    if group is None:
        raise InvalidInputError(
            f"{call.environment.name} has no GPU node group", fix="`steadfast deploy` makes it"
        )
    if nodes < group.desired:
        _refuse_under_a_run(call)
    if nodes > group.desired:
        _refuse_outside_the_block(call.environment)
        hourly = (
            estimate(call.environment).nodes_usd_h * nodes / (call.environment.nodes + call.environment.spares)
        )
        _ask_price(call, f"Scale {call.environment.name} to {nodes} nodes for about USD {hourly:,.2f} an hour?")
    with call.output.working(f"{call.environment.node_group}: {group.desired} to {nodes} nodes"):
        reached = scale_group(aws, nodes, limit_s=SCALE_LIMIT_S, poll_s=0.5 if call.local else 5.0)
    return reached.desired


def _refuse_outside_the_block(environment: Environment) -> None:
    """Instances of a block launch only while it is active; a group that asks earlier or later fails."""
    block, now = environment.capacity_block, datetime.now(UTC)
    if block and not block.start <= now < block.end:
        when = f"begins at {block.start:%Y-%m-%d %H:%M %Z}" if now < block.start else "has ended"
        raise RefusedError(
            f"the Capacity Block {when}", fix="the stack's schedule fills the group a minute after the start"
        )


def _check_size(environment: Environment, nodes: int) -> None:
    most = environment.nodes + environment.spares
    if nodes > most:
        raise InvalidInputError(
            f"N: {nodes} is more than nodes and spares, which are {most}", fix="change the file"
        )


def _refuse_under_a_run(call: Call) -> None:
    from ops.follow import outcome_of
    from ops.worlds import open_world

    with open_world(call) as world:
        under_way = [job.metadata.name for job in world.cluster.jobs() if outcome_of(job) is None]
    if under_way:
        raise RefusedError(
            f"{', '.join(under_way)} would lose its nodes",
            fix="`steadfast stop ENV --run NAME` saves and stops it",
        )


def connect(environment: EnvironmentArgument, local: LocalOption = False, as_json: JsonOption = False) -> None:
    """Write a kubeconfig, and say what to do with it."""
    call = Call.of(environment, local=local, as_json=as_json)
    path = call.state / "kubeconfig"
    if local:
        from ops.worlds import open_world

        with open_world(call):
            path = call.state / "kubernetes" / "kubeconfig"
    else:
        from ops.aws.access import aws_of
        from ops.aws.eks import write_kubeconfig

        write_kubeconfig(aws_of(call), path)
    name = call.environment.name
    following = [
        f"export KUBECONFIG={path}",
        f"steadfast scale {name} {call.environment.nodes + call.environment.spares}",
        f"steadfast submit {name} --run first",
    ]

    def words(console: Console) -> None:
        for line in following:
            console.print(escape(line))

    call.output.result({"kubeconfig": str(path), "next": following}, words)


def archive(environment: EnvironmentArgument, local: LocalOption = False, as_json: JsonOption = False) -> None:
    """Export everything that is only on the file system, and wait until it is in the archive."""
    from ops.aws.access import using_aws
    from ops.aws.archive import export

    call = Call.of(environment, local=local, as_json=as_json)
    with using_aws(call) as aws:
        files = export(aws, call.output.say, limit_s=EXPORT_LIMIT_S, poll_s=0.5 if local else 10.0)
        bucket = aws.bucket
    result = {"bucket": bucket, "files": files}
    call.output.result(result, lambda console: console.print(f"{files} files exported to {bucket}"))


def destroy(
    environment: EnvironmentArgument,
    purge: Annotated[
        bool, typer.Option("--purge", help="The archive and the images too: nothing remains.")
    ] = False,
    local: LocalOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take the environment away, after the archive check, and prove that it is gone; 4 if something is left."""
    from ops.aws.access import using_aws
    from ops.aws.inventory import as_dicts

    call = Call.of(environment, local=local, as_json=as_json, yes=yes)
    with deploy_lock(call), using_aws(call) as aws:
        if not local:
            items = _destroy(call, aws, purge=purge)
        else:
            from ops.aws.emulated import refuse_while_used, stop_emulated

            refuse_while_used(call)
            items = _destroy(call, aws, purge=purge)
            stop_emulated(call)
    result = {"environment": call.environment.name, "deleted": as_dicts(items), "purged": purge}
    call.output.result(
        result, lambda console: console.print(f"{call.environment.name} is gone: inventory is empty")
    )


def _destroy(call: Call, aws: Aws, *, purge: bool) -> list[Item]:
    """What was taken away."""
    from ops.aws.destroy import destroy as take_away
    from ops.aws.destroy import doomed
    from ops.aws.inventory import lines

    items = doomed(aws, purge=purge)
    for line in lines(items):
        call.output.say(f"  {line}")
    if items:
        what = "and its archive, for ever" if purge else "and keep its archive"
        call.output.confirm(f"Destroy these {len(items)} things of {call.environment.name} {what}?")
        _refuse_runs(call, items)
        take_away(aws, purge=purge, say=call.output.say, poll_s=0.5 if call.local else 5.0)
    return items


def _refuse_runs(call: Call, items: list[Item]) -> None:
    if any(item.kind == "EKS cluster" and item.state == "ACTIVE" for item in items):
        _refuse_under_a_run(call)


def inventory(environment: EnvironmentArgument, local: LocalOption = False, as_json: JsonOption = False) -> None:
    """What AWS has of the environment, asked service by service."""
    from ops.aws.access import using_aws
    from ops.aws.inventory import as_dicts, is_past_its_date, left_over, lines
    from ops.aws.inventory import inventory as ask

    call = Call.of(environment, local=local, as_json=as_json)
    with using_aws(call) as aws:
        items = ask(aws)
    goes = left_over(items, purged=False)

    def words(console: Console) -> None:
        for line in lines(goes):
            console.print(escape(line))
        for item in items:
            if item.kept:
                console.print(escape(f"{item}, kept by destroy"))
        console.print(f"{len(goes)} things, and {len(items) - len(goes)} that destroy keeps")
        if expired:
            console.print(f"expired on {call.environment.expires}: `steadfast destroy {call.environment.name}`")

    expired = is_past_its_date(call.environment, goes)
    call.output.result({"items": as_dicts(items), "expired": expired}, words)
