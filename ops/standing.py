"""How runs stand: from their Jobs while there are any, from their directories always."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ops.cluster import PodState
from ops.follow import newest_step, outcome_of
from ops.runs import RunStore
from ops.world import World

COMPLETED, NO_JOB, UNDER_WAY = "completed", "not running", "under way"


@dataclass(frozen=True)
class Standing:
    """One run."""

    run: str
    state: str
    reason: str
    step: int
    """The newest one known: logged while it runs, committed otherwise."""
    target: int | None
    submission: int
    job: str | None
    pods: tuple[PodState, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def from_directory(runs: RunStore, run: str) -> Standing:
    """What the run directory tells."""
    known = runs.run_json(run) or {}
    step, completed = runs.progress(run)
    return Standing(
        run=run,
        state=COMPLETED if completed else NO_JOB,
        reason="",
        step=step,
        target=known.get("config", {}).get("loop", {}).get("steps"),
        submission=int(known.get("submission", 0)),
        job=None,
    )


def standing(world: World, run: str) -> Standing:
    """What its newest Job tells, if it has one."""
    stored = from_directory(world.runs, run)
    jobs = world.cluster.jobs(run)
    if not jobs:
        return stored
    name = jobs[-1].metadata.name
    outcome = outcome_of(jobs[-1])
    known = world.existing(run) or {}
    return Standing(
        run=run,
        state=outcome.end.value if outcome else UNDER_WAY,
        reason=outcome.reason if outcome else "",
        step=max(stored.step, newest_step(world.cluster, name)[0]),
        target=known.get("config", {}).get("loop", {}).get("steps"),
        submission=int(known.get("submission", 0)),
        job=name,
        pods=tuple(world.cluster.pods(name)),
    )
