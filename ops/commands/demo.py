"""demo: a whole life on this machine."""

from __future__ import annotations

import typer

from ops.console import Output
from ops.options import JsonOption, local_folder


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog="**Example:** `steadfast demo`")(demo)


def demo(as_json: JsonOption = False) -> None:
    """Synthesize two environments, train here, break it twice, watch it recover, read the report.

    Ends with 0 only if the run reached its target, every fault was recovered, and every checkpoint that counts
    as committed loads.
    """
    from ops.demo import judge, run_demo, tell

    output = Output(as_json)
    result = run_demo(output, local_folder())
    tell(output, result)
    judge(result)
