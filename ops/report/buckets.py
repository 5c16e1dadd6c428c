"""Where the wall time went: exclusive, exhaustive buckets on the job's clock, cut by the slowest rank.

Every instant of the run lies in exactly one interval (between two marks of an episode, or between the ends of two
neighbouring steps) and every interval is shared out whole, so the sum is the wall time by construction.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ops.report.ledger import Ledger
from ops.report.phases import Episode, Mark, episodes
from ops.report.steps import Attempt, JobStep, attempts
from trainer.events import Event


class Bucket(StrEnum):
    """What a second was spent on (docs/goodput.md)."""

    SCHEDULE = "schedule"
    INIT = "init"
    FIRST_STEP = "first_step"
    PRODUCTIVE = "productive"
    SLOWDOWN = "slowdown"
    CHECKPOINT_BLOCKED = "checkpoint_blocked"
    CHECKPOINT_INTERFERENCE = "checkpoint_interference"
    DATA_WAIT = "data_wait"
    EVALUATION = "evaluation"
    DETECTION = "detection"
    TEARDOWN = "teardown"
    IMPORTS = "imports"
    RENDEZVOUS = "rendezvous"
    REBUILD = "rebuild"
    LOAD = "load"
    REPLAY = "replay"
    DRAIN = "drain"
    SHUTDOWN = "shutdown"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Interval:
    """A piece of the job's clock and how it is shared out; the shares sum to its length."""

    begin: float
    end: float
    shares: dict[Bucket, float]


_ENDS_AT: dict[Mark, Bucket] = {
    Mark.FAULT: Bucket.REPLAY,  # the step that the fault cut off is work to be done again
    Mark.DETECTED: Bucket.DETECTION,
    Mark.STOPPED: Bucket.TEARDOWN,
    Mark.LAUNCHER_ENDED: Bucket.TEARDOWN,
    Mark.LAUNCHER_STARTED: Bucket.SCHEDULE,
    Mark.PROCESS: Bucket.RENDEZVOUS,
    Mark.IMPORTED: Bucket.IMPORTS,
    Mark.GROUP: Bucket.RENDEZVOUS,
    Mark.BUILT: Bucket.REBUILD,
    Mark.RESTORED: Bucket.LOAD,
}


def buckets_s(ledger: Ledger, t_ref_s: float | None) -> dict[str, float]:
    """Seconds in each bucket. Without a reference step time nothing counts as slow."""
    totals = dict.fromkeys((bucket.value for bucket in Bucket), 0.0)
    for interval in timeline(ledger, t_ref_s):
        for bucket, seconds in interval.shares.items():
            totals[bucket.value] += seconds
    return totals


def timeline(ledger: Ledger, t_ref_s: float | None) -> list[Interval]:
    """The run from begin to end without gap or overlap."""
    if not ledger.records:
        return []
    of = attempts(ledger)
    cutter = _Cutter(ledger, of, t_ref_s)
    intervals = [*cutter.between_attempts(), *cutter.within_attempts(), *cutter.tail()]
    return sorted((item for item in intervals if item.end > item.begin), key=lambda item: item.begin)


class _Cutter:
    def __init__(self, ledger: Ledger, of: Sequence[Attempt], t_ref_s: float | None) -> None:
        self._ledger = ledger
        self._attempts = of
        self._episodes = episodes(ledger, of)
        self._t_ref_s = t_ref_s
        self._usual_s = t_ref_s if t_ref_s is not None else _median_step_s(of)
        self._evaluations = merge(ledger.spans(Event.EVALUATION))
        self._aside = merge([*ledger.spans(Event.EVALUATION), *ledger.spans(Event.DRAIN)])
        self._replayed = _replayed(of)

    def between_attempts(self) -> Iterable[Interval]:
        firsts = {attempt.steps[0].end: attempt.steps[0] for attempt in self._attempts if attempt.steps}
        for episode in self._episodes:
            at, seen = episode.begin, None
            for mark, time in episode.marks.items():
                yield self._aside_of(at, time, _label(episode, seen, mark))
                at, seen = time, mark
            step = firsts.get(episode.end) if episode.resumed else None
            if step is not None:
                yield self._step(at, step, slow=_slow_start(episode, seen))
            else:
                yield self._aside_of(at, episode.end, _interrupted_label(episode, seen))

    def within_attempts(self) -> Iterable[Interval]:
        for attempt in self._attempts:
            for before, step in itertools.pairwise(attempt.steps):
                yield self._step(before.end, step)

    def tail(self) -> Iterable[Interval]:
        """After the last step, unless an episode already covers it."""
        steps = [attempt.steps[-1].end for attempt in self._attempts if attempt.steps]
        covered = [episode.end for episode in self._episodes]
        begin = max([*steps, *covered], default=self._ledger.begin)
        yield self._aside_of(begin, self._ledger.end, Bucket.SHUTDOWN if steps else Bucket.UNKNOWN)

    def _aside_of(self, begin: float, end: float, rest: Bucket) -> Interval:
        """An interval whose evaluation and drain go to their buckets, and the rest to `rest`."""
        evaluation = overlap_s(self._evaluations, begin, end)
        drain = overlap_s(self._aside, begin, end) - evaluation
        shares = {Bucket.EVALUATION: evaluation, Bucket.DRAIN: drain}
        return Interval(begin, end, {**shares, rest: end - begin - evaluation - drain})

    def _step(self, begin: float, step: JobStep, *, slow: Bucket | None = None) -> Interval:
        """From the end of what came before to the end of `step`; `slow` is given for an attempt's first step."""
        interval = self._aside_of(begin, step.end, Bucket.PRODUCTIVE)
        left = interval.shares.pop(Bucket.PRODUCTIVE)
        blocked = min(left, step.blocked_s)
        replayed = (step.attempt, step.step) in self._replayed
        usual = self._usual(left - blocked, first=slow is not None, replayed=replayed)
        excess = left - blocked - usual
        data = min(excess, step.data_s) if slow is None else 0.0
        slow = slow or (Bucket.CHECKPOINT_INTERFERENCE if step.saving else Bucket.SLOWDOWN)
        shares = {Bucket.CHECKPOINT_BLOCKED: blocked, Bucket.DATA_WAIT: data, slow: excess - data}
        shares[Bucket.REPLAY if replayed else Bucket.PRODUCTIVE] = usual
        return Interval(begin, step.end, {**interval.shares, **shares})

    def _usual(self, seconds: float, *, first: bool, replayed: bool) -> float:
        """How much of a step is the step itself: up to the reference time where there is one to compare with."""
        if first:
            return seconds if self._usual_s is None else min(seconds, self._usual_s)
        if replayed or self._t_ref_s is None:
            return seconds
        return min(seconds, self._t_ref_s)


def _slow_start(episode: Episode, seen: Mark | None) -> Bucket:
    """Of what a first step took beyond a usual one: compilation, unless the way there was not recorded."""
    if episode.start_up:
        return Bucket.FIRST_STEP if seen is not None else Bucket.INIT
    return Bucket.FIRST_STEP if seen is not None and seen >= Mark.GROUP else Bucket.UNKNOWN


def _label(episode: Episode, seen: Mark | None, mark: Mark) -> Bucket:
    """The bucket of the time up to `mark`; unknown when the way there was not recorded."""
    if episode.start_up and mark is not Mark.LAUNCHER_STARTED:
        return Bucket.INIT
    if not episode.start_up and mark > Mark.LAUNCHER_ENDED and seen in (None, Mark.FAULT, Mark.DETECTED):
        return Bucket.UNKNOWN
    return _ENDS_AT[mark]


def _interrupted_label(episode: Episode, seen: Mark | None) -> Bucket:
    """Of what was still going on when the episode was cut off."""
    if episode.start_up:
        return Bucket.INIT
    if seen is None:
        return Bucket.UNKNOWN
    if seen is Mark.RESTORED:
        return Bucket.REPLAY
    following = {Mark.STOPPED: Mark.PROCESS, Mark.LAUNCHER_STARTED: Mark.PROCESS}.get(seen, Mark(seen + 1))
    return _ENDS_AT[following]


def _median_step_s(of: Sequence[Attempt]) -> float | None:
    durations = [b.end - a.end for attempt in of for a, b in itertools.pairwise(attempt.steps)]
    return statistics.median(durations) if durations else None


def _replayed(of: Sequence[Attempt]) -> set[tuple[int, int]]:
    """`(attempt, step)` of steps that an earlier attempt had done before."""
    high_water, found = 0, set()
    for attempt in of:
        found |= {(attempt.number, step.step) for step in attempt.steps if step.step <= high_water}
        high_water = max([high_water, *(step.step for step in attempt.steps)])
    return found


def merge(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Overlapping spans made one."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def overlap_s(merged: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """How much of [begin, end] the merged spans cover."""
    return sum(max(0.0, min(end, stop) - max(begin, start)) for start, stop in merged)
