"""How the job came from the last step of one attempt to the first step of the next: marks on its clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from ops.report.ledger import Ledger, Record
from ops.report.steps import Attempt
from trainer.events import Event
from trainer.faults.schema import FaultClass


class Mark(IntEnum):
    """In the order in which a recovery passes them. Those after IMPORTED are passed when all ranks have."""

    FAULT = 0
    DETECTED = 1
    STOPPED = 2
    LAUNCHER_ENDED = 3
    LAUNCHER_STARTED = 4
    PROCESS = 5
    IMPORTED = 6
    GROUP = 7
    BUILT = 8
    RESTORED = 9


QUIET_FAULTS = frozenset(
    {
        FaultClass.SLOW_RANK,
        FaultClass.NAN,
        FaultClass.ENOSPC,
        FaultClass.SLOW_STORAGE,
    }
)
"""Faults that need not interrupt the job."""

_DETECTING = (Event.FAILURE_DETECTED, Event.INTERRUPTED, Event.PLANNED_STOP)
_STOPPING = (Event.WORKERS_STOPPED, Event.ABORTED)
_FORWARD = (Event.PROCESS_STARTED, Event.GROUP_READY, Event.BUILT, Event.RESTORED)


@dataclass(frozen=True)
class Episode:
    """From a disturbance (or the start) until training goes on or is disturbed again.

    Two disturbances without progress between them are one episode; a fault during a recovery starts another.
    """

    begin: float
    end: float
    marks: dict[Mark, float]
    records: tuple[Record, ...]
    start_up: bool
    """No attempt before it has done a step."""
    resumed: bool
    """Training went on at its end."""

    @property
    def layer(self) -> str | None:
        """Who brought the ranks back, from what was started anew."""
        events = {record.event for record in self.records}
        if Event.GANG_RESTART in events:
            return "gang"
        if Event.LAUNCH_STARTED in events:
            return "pod"
        if Event.PROCESS_STARTED in events:
            return "launcher"
        return "in_process" if Event.GROUP_READY in events else None


def episodes(ledger: Ledger, of: Sequence[Attempt]) -> list[Episode]:
    """The start and every interruption, by time; together they are all the time between attempts' steps."""
    found: list[Episode] = []
    begin = earliest = ledger.begin
    first = True
    for attempt in of:
        if attempt.steps:
            records = _window(ledger, earliest, begin, attempt.steps[0].end)
            found += _split(ledger, records, begin, attempt.steps[0].end, start_up=first)
            begin, earliest, first = attempt.steps[-1].end, attempt.steps[-1].begin, False
    if first or _interrupted_at_the_end(ledger, begin):
        records = _window(ledger, earliest, begin, ledger.end)
        found += _split(ledger, records, begin, ledger.end, start_up=first, resumed=False)
    return found


def _window(ledger: Ledger, earliest: float, begin: float, end: float) -> list[Record]:
    """Records from begin to end, and faults from `earliest` on: a rank may be struck at the start of a step
    while another still ends the step before."""
    return [
        record
        for record in ledger.records
        if begin <= record.t <= end or (earliest <= record.t < begin and is_disturbing_fault(record))
    ]


def _interrupted_at_the_end(ledger: Ledger, begin: float) -> bool:
    if ledger.of_event(Event.FINISHED):
        return False
    return any(_is_disturbance(record) for record in ledger.between(begin, ledger.end))


def _split(
    ledger: Ledger, window: list[Record], begin: float, end: float, *, start_up: bool, resumed: bool = True
) -> list[Episode]:
    """Cut a window wherever a new disturbance follows progress."""
    parts: list[list[Record]] = [[]]
    starts = [begin]
    disturbed, progressed = start_up, False
    for record in window:
        if _is_disturbance(record):
            if progressed and disturbed:
                parts.append([])
                starts.append(record.t)
                progressed = False
            disturbed = True
        elif record.event in _FORWARD and disturbed:
            progressed = True
        parts[-1].append(record)
    ends = [*starts[1:], end]
    last = len(parts) - 1
    return [
        Episode(
            begin=starts[number],
            end=ends[number],
            marks=_marks(ledger, part, starts[number], ends[number]),
            records=tuple(part),
            start_up=start_up and number == 0,
            resumed=resumed and number == last,
        )
        for number, part in enumerate(parts)
    ]


def _is_disturbance(record: Record) -> bool:
    return record.event in _DETECTING or is_disturbing_fault(record)


def is_disturbing_fault(record: Record) -> bool:
    """A fault that stops the job."""
    return record.event is Event.FAULT_INJECTED and record.fields.get("class") not in QUIET_FAULTS


def _marks(ledger: Ledger, records: list[Record], begin: float, end: float) -> dict[Mark, float]:
    """The marks passed, each not before the one in front of it."""
    progress = [record.t for record in records if record.event in _FORWARD]
    before = [record for record in records if not progress or record.t <= min(progress)]
    found: dict[Mark, float | None] = {
        Mark.FAULT: min((record.t for record in records if is_disturbing_fault(record)), default=None),
        Mark.DETECTED: _first(records, *_DETECTING),
        Mark.STOPPED: _last(before, *_STOPPING),
        Mark.LAUNCHER_ENDED: _last(before, Event.LAUNCH_ENDED),
        Mark.LAUNCHER_STARTED: _last(before, Event.LAUNCH_STARTED),
        Mark.PROCESS: _process(records, "start_s"),
        Mark.IMPORTED: _process(records, "imported_s"),
        Mark.GROUP: _all_ranks(ledger, records, Event.GROUP_READY),
        Mark.BUILT: _all_ranks(ledger, records, Event.BUILT),
        Mark.RESTORED: _all_ranks(ledger, records, Event.RESTORED),
    }
    passed: dict[Mark, float] = {}
    at = begin
    for mark, time in found.items():
        if time is not None:
            at = min(max(at, time), end)
            passed[mark] = at
    return passed


def _first(records: list[Record], *events: Event) -> float | None:
    return min((record.t for record in records if record.event in events), default=None)


def _last(records: list[Record], *events: Event) -> float | None:
    return max((record.t for record in records if record.event in events), default=None)


def _process(records: list[Record], field: str) -> float | None:
    return max((record.at(field) for record in records if record.event is Event.PROCESS_STARTED), default=None)


def _all_ranks(ledger: Ledger, records: list[Record], event: Event) -> float | None:
    """When the last rank passed; None when some rank never did."""
    passed = [record for record in records if record.event is event]
    ranks = {record.rank for record in passed}
    sizes = [ledger.world_sizes[record.attempt] for record in passed if record.attempt in ledger.world_sizes]
    needed = max(sizes, default=max(ledger.world_sizes.values(), default=1))
    return max(record.t for record in passed) if passed and len(ranks) >= needed else None
