"""submit, list, status, logs, stop, report: everything about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ops.errors import Code, InvalidInputError, VerificationError
from ops.follow import End
from ops.options import Call, EnvironmentArgument, JsonOption, LocalOption, RunOption, local_folder
from ops.report.compare import comparison_rows, same_result
from ops.report.control import control_problems
from ops.report.reference import ReferenceTime, reference_time
from ops.report.run_directory import NoSuchRunError, Run, load_run
from ops.report.summary import Summary
from ops.report.terminal import print_rows, print_summary
from ops.report.verify import verify
from ops.standing import Standing, from_directory, standing
from ops.submission import (
    STOP_MARGIN_S,
    finish,
    keep_summary,
    release_control,
    show,
    stop_run,
    submit_run,
)
from ops.submit import Request, plan
from ops.tree_digest import local_image
from ops.worlds import open_world
from trainer.checkpoint.verify import verify_generation

StepsOption = Annotated[
    int | None, typer.Option("--steps", metavar="N", help="The target step, if not the file's.")
]
FaultsOption = Annotated[
    Path | None, typer.Option("--faults", metavar="FILE", help="Faults to inject: a YAML list (docs/faults.md).")
]
ControlOption = Annotated[
    str | None,
    typer.Option("--control", metavar="RUN", help="An undisturbed run that gives the reference step time."),
]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command(epilog="**Example:** `steadfast submit local --local --run first --steps 60`")(submit)
    app.command("list", epilog="**Example:** `steadfast list two-node-p5`")(list_runs)
    app.command(epilog="**Example:** `steadfast status two-node-p5 --run first`")(status)
    app.command(epilog="**Example:** `steadfast logs two-node-p5 --run first --index 1 --follow`")(logs)
    app.command(epilog="**Example:** `steadfast stop two-node-p5 --run first`")(stop)
    app.command(epilog="**Example:** `steadfast report local --local --run first --verify`")(report)


def submit(
    environment: EnvironmentArgument,
    run: RunOption,
    steps: StepsOption = None,
    faults: FaultsOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that exists.")] = False,
    control: ControlOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once the Job is accepted.")] = False,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train: validate everything, create the Job, follow it to its end, write the report.

    Ends with 0 if the target was reached and 6 if not; 2 if something is wrong with what was asked, 3 if fewer
    nodes are up than the Job needs. Nothing is created in either case.
    """
    call = Call.of(environment, local=local, as_json=as_json)
    request = Request(run, steps, faults, resume, local_image(call.environment) if local else None, local)
    t_ref = _reference(call, control)
    if local:  # before anything is started
        from ops.local_world import runs_of

        plan(call.environment, request, runs_of(call).run_json(run))
    with open_world(call, bring_up=True, keep=detach) as world:
        for name, fact in world.facts.items():
            call.output.say(f"substituted {name}: {fact}")
        planned = submit_run(world, request, t_ref, detach=detach)
        if detach:
            job = planned.spec.job_name
            call.output.result({"run": run, "job": job}, lambda console: console.print(f"Job {job} is accepted"))
            return
        finished = finish(world, planned)
    show(call.output, finished)
    if as_json and finished.outcome.end is not End.REACHED:  # the one JSON object has said it
        raise typer.Exit(Code.RUN_FAILED)
    finished.raise_if_failed()


def _reference(call: Call, control: str | None) -> ReferenceTime | None:
    """Raises InvalidInputError with everything that speaks against the run as a control run."""
    if control is None:
        return None
    run = load_run(_root(call, control))
    problems = control_problems(run, call.environment.training, call.environment.world_size)
    found = reference_time(run.ledger)
    if found is None:
        problems.append("it did too few steps after its first 20 to give a step time")
    if problems or found is None:
        raise InvalidInputError(
            f"--control: run {control} is no control run for this one",
            details=problems,
            fix=f"train one undisturbed: `steadfast submit {call.environment.name} --run NAME`, without --faults",
        )
    return found


def list_runs(environment: EnvironmentArgument, local: LocalOption = False, as_json: JsonOption = False) -> None:
    """Every run that has left a trace, and how it stands."""
    call = Call.of(environment, local=local, as_json=as_json)
    found = _standings(call, None)

    def words(console: Console) -> None:
        table = Table("run", "state", "step", "submissions", box=None)
        for row in found:
            table.add_row(row.run, row.state, f"{row.step} of {row.target}", str(row.submission))
        console.print(table)

    call.output.result({"runs": [row.as_dict() for row in found]}, words)


def _standings(call: Call, run: str | None) -> list[Standing]:
    """Of one run, or of all. A local environment that is not up is read from its run directories."""
    if call.local:
        from ops.local_world import running_world, runs_of

        world = running_world(call)
        if world is None:
            runs = runs_of(call)
            return [from_directory(runs, name) for name in runs.names() if run in (None, name)]
        return [standing(world, name) for name in world.names() if run in (None, name)]
    with open_world(call) as world:
        return [standing(world, name) for name in world.names() if run in (None, name)]


def status(
    environment: EnvironmentArgument, run: RunOption, local: LocalOption = False, as_json: JsonOption = False
) -> None:
    """How a run stands: its Job, its pods, its newest step."""
    call = Call.of(environment, local=local, as_json=as_json)
    found = _standings(call, run)
    if not found:
        raise InvalidInputError(f"there is no run {run}", fix="`steadfast list ENV` shows the runs")
    [stands] = found

    def words(console: Console) -> None:
        console.print(f"run {run}: {stands.state}, step {stands.step} of {stands.target}")
        if stands.reason:
            console.print(stands.reason, markup=False)
        for pod in stands.pods:
            ended = "" if pod.exit_code is None else f" exit {pod.exit_code}"
            console.print(f"  {pod.name} on {pod.node or '-'}: {pod.phase}{ended} {pod.reason}", markup=False)

    call.output.result(stands.as_dict(), words)


def logs(
    environment: EnvironmentArgument,
    run: RunOption,
    index: Annotated[int, typer.Option("--index", metavar="N", help="Which pod of the Job.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the pod ends.")] = False,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """What one pod of the run's newest Job has written."""
    call = Call.of(environment, local=local, as_json=as_json)
    with open_world(call) as world:
        jobs = world.cluster.jobs(run)
        pods = [pod for pod in world.cluster.pods(jobs[-1].metadata.name) if pod.index == index] if jobs else []
        if not pods:
            raise InvalidInputError(
                f"run {run} has no pod with index {index}", fix="`steadfast status` shows them"
            )
        newest = pods[-1].name
        if as_json:
            call.output.result({"pod": newest, "log": world.cluster.log(newest)}, lambda _: None)
        elif follow:
            for line in world.cluster.follow_log(newest):
                typer.echo(line)
        else:
            typer.echo(world.cluster.log(newest), nl=False)


def stop(
    environment: EnvironmentArgument, run: RunOption, local: LocalOption = False, as_json: JsonOption = False
) -> None:
    """Stop a run: its Job is suspended, all ranks save and leave; `submit --resume` goes on."""
    call = Call.of(environment, local=local, as_json=as_json)
    with open_world(call) as world:
        limit_s = call.environment.training.recovery.termination_grace_s + STOP_MARGIN_S
        with call.output.working(f"{run}: all ranks save and leave"):
            job = stop_run(world.cluster, run, limit_s)
            release_control(world.cluster, job)
    call.output.result({"run": run, "job": job}, lambda console: console.print(f"run {run} is stopped"))


def report(
    environment: EnvironmentArgument,
    run: RunOption,
    check: Annotated[
        bool, typer.Option("--verify", help="Derive again what must hold; 1 if it does not.")
    ] = False,
    compare: Annotated[
        list[str] | None, typer.Option("--compare", metavar="RUN", help="Runs to put beside it; may be repeated.")
    ] = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report from its ledger, and show it."""
    call = Call.of(environment, local=local, as_json=as_json)
    loaded = load_run(_root(call, run))
    summary, folder = keep_summary(loaded, local_folder() / "reports" / call.environment.name / run)
    if check:
        _verify(call, loaded)
    if compare:
        others = [load_run(_root(call, name)).summary() for name in compare]
        rows = comparison_rows([summary, *others])
        same = same_result([summary, *others])
        names = ["", run, *compare]
        result = {
            "runs": {s.run: s.model_dump(mode="json", by_alias=True) for s in (summary, *others)},
            "same": same,
        }
        call.output.result(result, lambda console: print_rows(console, "Comparison", tuple(names), rows))
        return
    result = {**summary.model_dump(mode="json", by_alias=True), "report": str(folder)}
    call.output.result(result, lambda console: _shown(console, summary, folder))


def _shown(console: Console, summary: Summary, folder: Path) -> None:
    print_summary(console, summary)
    console.print(f"report in {folder}", markup=False)


def _verify(call: Call, loaded: Run) -> None:
    for fault in loaded.summary().not_struck:
        call.output.say(str(fault))
    problems = verify(loaded, verify_generation)
    if problems:
        raise VerificationError(f"run {loaded.info.run} does not verify", details=problems)
    call.output.say(f"run {loaded.info.run} verifies")


def _root(call: Call, run: str) -> Path:
    """The run directory, fetched from the archive on AWS."""
    if call.local:
        from ops.local_world import runs_of

        store: Any = runs_of(call)
    else:
        from ops.aws.world import archived_runs

        store = archived_runs(call)
    if run not in store.names():
        raise NoSuchRunError(f"there is no run {run} in {call.environment.name}; runs: {', '.join(store.names())}")
    return Path(store.fetch(run))
