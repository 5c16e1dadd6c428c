"""The ledger on one clock: the job's. Pure functions over records."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainer.events import Event

_KNOWN = {event.value for event in Event}


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `t` is on the job's clock: Unix seconds by the host's monotonic clock."""

    event: Event
    t: float
    shift_s: float
    """Added to a CLOCK_MONOTONIC time of this record's host, it gives the job's clock."""
    rank: int | None
    attempt: int | None
    pod: str
    fields: Mapping[str, Any]

    def at(self, name: str) -> float:
        """A field that is a CLOCK_MONOTONIC time, on the job's clock. Raises KeyError."""
        return float(self.fields[name]) + self.shift_s

    def number(self, name: str, default: float = 0.0) -> float:
        """A numeric field; null and absent give the default."""
        value = self.fields.get(name)
        return default if value is None else float(value)


@dataclass(frozen=True)
class Ledger:
    """All records of a run, by time."""

    records: tuple[Record, ...]

    @classmethod
    def of(cls, raw: Iterable[Mapping[str, Any]]) -> Ledger:
        """From raw records of any order; events of a newer version are left out."""
        rows = [row for row in raw if row.get("event") in _KNOWN]
        shifts = _clock_shifts(rows)
        return cls(tuple(sorted((_record(row, shifts) for row in rows), key=lambda record: record.t)))

    def of_event(self, *events: Event) -> list[Record]:
        """Those of the given events, by time."""
        return [record for event in events for record in self._by_event.get(event, ())]

    def between(self, begin: float, end: float) -> list[Record]:
        """Those with begin < t <= end."""
        return [record for record in self.records if begin < record.t <= end]

    def spans(self, event: Event) -> list[tuple[float, float]]:
        """`(start, end)` of records that carry `start_s` and `end_s`."""
        return [(record.at("start_s"), record.at("end_s")) for record in self.of_event(event)]

    @property
    def begin(self) -> float:
        """Start of the wall time: the first sign of the first pod."""
        starts = [record.at("start_s") for record in self.of_event(Event.PROCESS_STARTED)]
        return min([self.records[0].t, *starts])

    @property
    def end(self) -> float:
        """End of the wall time: the last sign of any pod."""
        return self.records[-1].t

    @cached_property
    def world_sizes(self) -> dict[int, int]:
        """Ranks of each attempt: as it was opened, else as many as were seen."""
        seen: dict[int, set[int]] = {}
        for record in self.records:
            if record.attempt is not None and record.rank is not None:
                seen.setdefault(record.attempt, set()).add(record.rank)
        sizes = {attempt: len(ranks) for attempt, ranks in seen.items()}
        for record in self.of_event(Event.ATTEMPT_OPENED):
            if record.attempt is not None and record.fields.get("world_size"):
                sizes[record.attempt] = int(record.fields["world_size"])
        return sizes

    @cached_property
    def _by_event(self) -> dict[Event, list[Record]]:
        grouped: dict[Event, list[Record]] = {}
        for record in self.records:
            grouped.setdefault(record.event, []).append(record)
        return grouped


def _clock_shifts(rows: list[Mapping[str, Any]]) -> dict[str, float]:
    """Wall minus monotonic per boot; the median, since a wall clock may be stepped during a run."""
    samples: dict[str, list[float]] = {}
    for row in rows:
        samples.setdefault(str(row.get("boot")), []).append(float(row["wall_s"]) - float(row["mono_s"]))
    return {boot: statistics.median(values) for boot, values in samples.items()}


def _record(row: Mapping[str, Any], shifts: Mapping[str, float]) -> Record:
    shift_s = shifts[str(row.get("boot"))]
    return Record(
        event=Event(row["event"]),
        # What trainer.launch reads from ft_launcher's log happened a little before it was read.
        t=float(row.get("at_wall_s") or float(row["mono_s"]) + shift_s),
        shift_s=shift_s,
        rank=row.get("rank"),
        attempt=row.get("attempt"),
        pod=str(row.get("pod", "")),
        fields=row,
    )
