from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ops import blueprint
from ops.console import Output
from ops.options import Call, EnvironmentArgument, JsonOption, LocalOption
from ops.price import estimate
from ops.synth import synthesize

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A field of the copy, such as nodes=4.")
]
FolderOption = Annotated[
    Path | None,
    typer.Option("--folder", help="Where the file goes; environments/ if not given.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command(epilog="**Example:** `steadfast init speech-p5`")(init)
    app.command(epilog="**Example:** `steadfast clone two-node-p5 wide --set nodes=4`")(clone)
    app.command(epilog="**Example:** `steadfast synth two-node-p5 --out build/two-node-p5`")(synth)
    app.command(epilog="**Example:** `steadfast price two-node-p5`")(price)


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new environment's name.")],
    folder: FolderOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a commented environment file to start from."""
    del local  # the same file serves both
    path = blueprint.init(name, folder)
    Output(as_json).result({"file": str(path)}, lambda console: _written(console, path))


def clone(
    environment: EnvironmentArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The copy's name.")],
    settings: SetOption = None,
    folder: FolderOption = None,
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Copy an environment file under another name, comments kept; nothing is deployed."""
    call = Call.of(environment, local=local, as_json=as_json)
    path = blueprint.clone(call.path, new, settings or [], folder)
    call.output.result({"file": str(path)}, lambda console: _written(console, path))


def synth(
    environment: EnvironmentArgument,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", file_okay=False, help="Where templates and manifests go.")
    ],
    image: Annotated[
        str | None, typer.Option("--image", metavar="REPO@sha256:…", help="For the Job; else the file's.")
    ] = None,
    run: Annotated[str, typer.Option("--run", metavar="NAME", help="The run that the Job is for.")] = "example",
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the five stacks' templates and the Kubernetes manifests. No network, no credentials."""
    call = Call.of(environment, local=local, as_json=as_json)
    with call.output.working(f"synthesizing {call.environment.name}"):
        written = synthesize(call.environment, out, image=image, run=run, local=call.local)
    call.output.result(written.as_dict(), written.show)


def price(environment: EnvironmentArgument, local: LocalOption = False, as_json: JsonOption = False) -> None:
    """What the environment costs, by the hour and by the month: list prices, not a quote."""
    call = Call.of(environment, local=local, as_json=as_json)
    found = estimate(call.environment)
    call.output.result(found.as_dict(), found.show)


def _written(console: Console, path: Path) -> None:
    console.print(f"wrote {path}; now `steadfast check {path.stem}`")
