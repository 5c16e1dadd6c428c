"""One timeline per fault: t0 injected … t6 first step nobody had done before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ops.report.ledger import Ledger, Record
from ops.report.phases import Episode, Mark, episodes, is_disturbing_fault
from ops.report.steps import Attempt, JobStep, attempts, rollbacks
from trainer.events import Event
from trainer.faults.schema import FROM_OUTSIDE, FaultClass

_ACTS_LATER = {FaultClass.SIGTERM, *FROM_OUTSIDE}
"""The job may do steps between the record and the blow: a kill from outside takes its way."""


class FaultFigures(BaseModel):
    """A fault and its recovery. Null: not reached, or not needed."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, use_attribute_docstrings=True)

    id: str
    class_: str = Field(alias="class")
    rank: int
    step: int
    recovered: bool
    layer: str | None
    """in_process, launcher, gang or pod; `none` when training went on without a restart."""
    detect_s: float | None
    """t1 - t0."""
    restart_s: float | None
    """t4 - t1: from detection until the state is loaded on all ranks."""
    recovery_s: float | None
    """t5 - t0."""
    new_ground_s: float | None
    """t6 - t0."""
    lost_steps: int
    attempt: int | None
    """The attempt that recovered it."""
    t: list[float | None]
    """t0 … t6 in seconds since the run's begin."""


def fault_figures(ledger: Ledger) -> list[FaultFigures]:
    """Every injected fault, by time."""
    of = attempts(ledger)
    found = episodes(ledger, of) if ledger.records else []
    injected = ledger.of_event(Event.FAULT_INJECTED)
    lost = _charge(injected, of)
    return [_figures(record, ledger, of, found, lost.get(id(record), 0)) for record in injected]


def _charge(injected: Sequence[Record], of: Sequence[Attempt]) -> dict[int, int]:
    """Lost steps by fault record: each rollback is charged once, to the first fault that can have caused it."""
    lost: dict[int, int] = {}
    for rollback in rollbacks(of):
        causes = [
            record
            for record in injected
            if rollback.before.opened_at < record.t < rollback.after.opened_at and is_disturbing_fault(record)
        ]
        if causes:
            lost[id(causes[0])] = lost.get(id(causes[0]), 0) + rollback.lost_steps
    return lost


def _figures(
    record: Record, ledger: Ledger, of: Sequence[Attempt], found: Sequence[Episode], lost_steps: int
) -> FaultFigures:
    episode = _episode_of(record, found)
    since = record.t if episode is None else max(record.t, episode.begin)
    steps = sorted((step for attempt in of for step in attempt.steps), key=lambda step: step.end)
    first = next((step for step in steps if step.end > since), None)
    finished = any(end.t > since for end in ledger.of_event(Event.FINISHED))
    ends = [first.end if first else None, _new_ground(since, steps)]
    times = [None if time is None else time - ledger.begin for time in [*_marked(record.t, episode), *ends]]
    return FaultFigures(
        **_identity(record),
        recovered=first is not None or finished,
        layer="none" if episode is None else episode.layer,
        detect_s=_between(times, 0, 1),
        restart_s=_between(times, 1, 4),
        recovery_s=_between(times, 0, 5),
        new_ground_s=_between(times, 0, 6),
        lost_steps=lost_steps,
        attempt=first.attempt if first else None,
        t=times,
    )


def _marked(t0: float, episode: Episode | None) -> list[float | None]:
    """t0 … t4. A fault that struck after another had been detected counts as found when it struck."""
    marks = episode.marks if episode else {}
    passed = (marks.get(mark) for mark in (Mark.DETECTED, Mark.STOPPED, Mark.GROUP, Mark.RESTORED))
    return [t0, *(None if time is None else max(t0, time) for time in passed)]


def _identity(record: Record) -> dict[str, Any]:
    fields = record.fields
    rank = fields.get("fault_rank", record.rank)
    return {
        "id": str(fields["id"]),
        "class": str(fields["class"]),
        "rank": int(rank if rank is not None else 0),
        "step": int(fields["step"]),
    }


def _episode_of(record: Record, found: Sequence[Episode]) -> Episode | None:
    """The interruption that the fault brought about; None when training just went on."""
    if record.fields["class"] == FaultClass.NAN:
        return next((episode for episode in found if any(_is_stop_by(record, r) for r in episode.records)), None)
    if not is_disturbing_fault(record):
        return None
    inside = next((episode for episode in found if record in episode.records), None)
    if record.fields["class"] == FaultClass.SIGTERM:  # the job trains on until all ranks have agreed to stop
        inside = None
    if inside is None and record.fields["class"] in _ACTS_LATER:
        return next((episode for episode in found if episode.end >= record.t and not episode.start_up), None)
    return inside


def _is_stop_by(fault: Record, record: Record) -> bool:
    """With `optimizer.non_finite: stop` a rank leaves at the step whose loss was made not a number."""
    words = f"NonFiniteError: step {fault.fields['step']}:"
    return record.event is Event.INTERRUPTED and words in str(record.fields.get("detail")) and record.t >= fault.t


def _new_ground(since: float, steps: Sequence[JobStep]) -> float | None:
    high_water = max((step.step for step in steps if step.end <= since), default=0)
    return min((step.end for step in steps if step.end > since and step.step > high_water), default=None)


def _between(times: Sequence[float | None], begin: int, end: int) -> float | None:
    first, last = times[begin], times[end]
    return None if first is None or last is None else last - first
