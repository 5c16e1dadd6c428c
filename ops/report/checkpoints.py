"""What saves cost and what they were worth."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from ops.report.buckets import merge
from ops.report.ledger import Ledger, Record
from ops.report.reference import ReferenceTime, step_times_s
from ops.report.steps import attempts, job_steps
from trainer.events import Event


class StallFigures(BaseModel):
    """Seconds a save blocked training at the slowest rank; the first save apart, since it prepares the others."""

    model_config = ConfigDict(frozen=True)

    p50: float
    p99: float
    max: float
    first: float


class CheckpointFigures(BaseModel):
    """Figures over all saves of a run. Null: nothing to take it from."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    writer: str | None
    stage: str | None
    efficiency: float | None
    """T_control / T_with_checkpoints over the same steps, the last drain included. Null with faults."""
    efficiency_stall_only: float | None
    """1 - blocked / step time: without the interference of background writes."""
    prepare_s: float | None
    """The slowest rank's preparation before its first save."""
    drain_s: float
    host_bytes: int | None
    """The largest rank's."""
    device_bytes: int | None
    rpo_s: float | None
    """The largest age that the newest durable generation had at a fault."""
    saves: int
    stall_s: StallFigures | None
    bytes: int | None
    """Of the newest generation, all ranks."""
    commit_s: float | None
    """Median, from launch to commit."""
    skipped: int
    """Saves to storage that were due and left out; memory may have taken the state. Not snapshots left out."""
    failed: int


def checkpoint_figures(ledger: Ledger, t_ref: ReferenceTime | None) -> CheckpointFigures:
    """From the ledger alone, but for the reference time."""
    prepared = ledger.of_event(Event.PREPARED)
    commits = ledger.of_event(Event.COMMITTED)
    return CheckpointFigures(
        writer=_text(prepared, "writer"),
        stage=_text(prepared, "stage"),
        efficiency=_efficiency(ledger, t_ref),
        efficiency_stall_only=_efficiency_stall_only(ledger),
        prepare_s=max((record.number("duration_s") for record in prepared), default=None),
        drain_s=sum(end - begin for begin, end in merge(ledger.spans(Event.DRAIN))),
        host_bytes=_largest(prepared, "host_bytes"),
        device_bytes=_largest(prepared, "device_bytes"),
        rpo_s=_rpo_s(ledger, commits),
        saves=len(commits),
        stall_s=_stalls(ledger),
        bytes=int(commits[-1].number("bytes")) if commits else None,
        commit_s=statistics.median(record.number("commit_s") for record in commits) if commits else None,
        skipped=_decisions(_persists(ledger.of_event(Event.SAVE_SKIPPED))),
        failed=_decisions(ledger.of_event(Event.SAVE_FAILED)),
    )


def stalls_s(ledger: Ledger) -> list[float]:
    """Per snapshot, in order, what the slowest rank was blocked."""
    by_save: dict[tuple[int | None, int], float] = {}
    for record in ledger.of_event(Event.SNAPSHOT):
        key = (record.attempt, int(record.fields["step"]))
        by_save[key] = max(by_save.get(key, 0.0), record.number("blocked_s"))
    return list(by_save.values())


def quantile(values: Sequence[float], fraction: float) -> float:
    """Linear between neighbours. Raises IndexError without values."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * fraction
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def interval_s(ledger: Ledger) -> float | None:
    """Median time between the starts of neighbouring saves of one attempt."""
    starts: dict[int | None, list[float]] = {}
    for record in ledger.of_event(Event.COMMITTED):
        starts.setdefault(record.attempt, []).append(record.t - record.number("commit_s"))
    gaps = [b - a for times in starts.values() for a, b in itertools.pairwise(times)]
    return statistics.median(gaps) if gaps else None


def _stalls(ledger: Ledger) -> StallFigures | None:
    stalls = stalls_s(ledger)
    if not stalls:
        return None
    later = stalls[1:] or stalls
    return StallFigures(p50=quantile(later, 0.5), p99=quantile(later, 0.99), max=max(later), first=stalls[0])


def _efficiency(ledger: Ledger, t_ref: ReferenceTime | None) -> float | None:
    times = step_times_s(ledger)
    if t_ref is None or not times or ledger.of_event(Event.FAULT_INJECTED) or len(attempts(ledger)) != 1:
        return None
    drain_s = sum(end - begin for begin, end in merge(ledger.spans(Event.DRAIN)))
    return t_ref.median_s * len(times) / (sum(times) + drain_s)


def _efficiency_stall_only(ledger: Ledger) -> float | None:
    times = step_times_s(ledger, skip=0)
    if not times or not ledger.of_event(Event.SNAPSHOT):
        return None
    firsts = {(attempt.number, attempt.steps[0].step) for attempt in attempts(ledger) if attempt.steps}
    blocked_s = sum(step.blocked_s for step in job_steps(ledger) if (step.attempt, step.step) not in firsts)
    return max(0.0, 1 - blocked_s / sum(times))


def _rpo_s(ledger: Ledger, commits: Sequence[Record]) -> float | None:
    """The age is counted from when the generation's state was current: its launch, not its commit."""
    ages = []
    for fault in ledger.of_event(Event.FAULT_INJECTED):
        durable = [commit.t - commit.number("commit_s") for commit in commits if commit.t <= fault.t]
        if durable:
            ages.append(fault.t - max(durable))
    return max(ages, default=None)


def _persists(records: Sequence[Record]) -> list[Record]:
    """Those to storage. Ledgers of earlier versions know no other kind."""
    return [record for record in records if record.fields.get("kind", "persist") == "persist"]


def _decisions(records: Sequence[Record]) -> int:
    """A decision that several ranks recorded counts once."""
    return len({(record.attempt, record.fields.get("step")) for record in records})


def _text(records: Sequence[Record], field: str) -> str | None:
    return next((str(record.fields[field]) for record in reversed(records) if record.fields.get(field)), None)


def _largest(records: Sequence[Record], field: str) -> int | None:
    values = [int(record.fields[field]) for record in records if record.fields.get(field) is not None]
    return max(values, default=None)
