"""node release: free the index of a pod on a node that is gone."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.options import Call, EnvironmentArgument, JsonOption, LocalOption, YesOption
from ops.release import release_node
from ops.worlds import open_world

node_app = typer.Typer(name="node", no_args_is_help=True, help="Nodes.")


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    node_app.command(epilog="**Example:** `steadfast node release two-node-p5 ip-10-0-3-7.ec2.internal`")(release)
    app.add_typer(node_app)


@node_app.callback()
def nodes() -> None:
    """Nodes."""


def release(
    environment: EnvironmentArgument,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The Node object's name.")],
    local: LocalOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give up a lost node: its instance is terminated, then its pods' indexes are freed for a replacement."""
    call = Call.of(environment, local=local, as_json=as_json, yes=yes)
    with open_world(call) as world:
        release_node(world, node)
    call.output.result({"node": node, "released": True}, lambda console: console.print(f"{node} is released"))
