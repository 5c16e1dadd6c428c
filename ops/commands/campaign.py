"""campaign: break a job on purpose, many times, and count what comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.options import Call, EnvironmentArgument, JsonOption, LocalOption


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(epilog="**Example:** `steadfast campaign local campaigns/nightly.yaml --local`")(campaign)


def campaign(
    environment: EnvironmentArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to break (docs/campaigns.md).")],
    local: LocalOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train undisturbed once, then run after run with faults; report who recovered what, and how fast.

    The same file gives the same faults. A campaign that was interrupted goes on where it was. Ends with 0 only
    if every fault struck and was recovered and every run ended with the undisturbed run's parameters.
    """
    from ops.campaign import Campaign
    from ops.campaign_plan import load_spec, plan_campaign
    from ops.campaign_table import markdown, problem_rows, show, shown_faults, verdict
    from ops.errors import Code, RunFailedError
    from ops.files import write_atomically
    from ops.outside_faults import refuse_where_nobody_strikes
    from ops.worlds import open_world

    call = Call.of(environment, local=local, as_json=as_json)
    spec = load_spec(file)
    plan = plan_campaign(spec, call.environment.training, call.environment.world_size, file.stem)
    refuse_where_nobody_strikes([fault for run in plan.runs for fault in run.faults], local=local)
    with open_world(call, bring_up=True) as world:
        job = Campaign(spec, plan, world, file.stem)
        records = job.run(lambda so_far: write_atomically(job.folder / "campaign.md", markdown(so_far, plan)))
    result = {**records.model_dump(mode="json", by_alias=True), "folder": str(job.folder)}
    call.output.result(result, lambda console: show(console, records, plan))
    if not problem_rows(shown_faults(records)):
        return
    if as_json:  # the one JSON object has said it
        raise typer.Exit(Code.RUN_FAILED)
    raise RunFailedError(verdict(shown_faults(records)), details=[f"records in {job.folder}"])
