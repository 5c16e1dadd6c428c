"""Steps as the job did them (the slowest rank decides), attempts, and what rollbacks lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ops.report.ledger import Ledger, Record
from trainer.events import Event


@dataclass(frozen=True, slots=True)
class JobStep:
    """A step that every rank of its attempt has done."""

    attempt: int
    step: int
    begin: float
    end: float
    """The slowest rank's, like the figures below."""
    blocked_s: float
    data_s: float
    saving: bool
    tokens: int
    loss: float | None
    finite: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt loaded and did."""

    number: int
    opened_at: float
    loaded_step: int
    steps: tuple[JobStep, ...]

    @property
    def position(self) -> int:
        """The last step it stood at."""
        return self.steps[-1].step if self.steps else self.loaded_step


@dataclass(frozen=True, slots=True)
class Rollback:
    """The way from one attempt's position back to the step the next one loaded."""

    before: Attempt
    after: Attempt

    @property
    def lost_steps(self) -> int:
        """Steps done that have to be done again. Summed over a run: steps done minus useful steps."""
        return max(0, self.before.position - self.after.loaded_step)


def job_steps(ledger: Ledger) -> list[JobStep]:
    """Every step done by all ranks of its attempt, by the time it ended."""
    groups: dict[tuple[int, int], list[Record]] = {}
    for record in ledger.of_event(Event.STEP):
        if record.attempt is not None:
            groups.setdefault((record.attempt, int(record.fields["step"])), []).append(record)
    done = [
        _job_step(attempt, step, records)
        for (attempt, step), records in groups.items()
        if len({record.rank for record in records}) >= ledger.world_sizes[attempt]
    ]
    return sorted(done, key=lambda step: (step.attempt, step.step))


def _job_step(attempt: int, step: int, records: list[Record]) -> JobStep:
    first = min(records, key=lambda record: -1 if record.rank is None else record.rank)
    loss = first.fields.get("loss")
    return JobStep(
        attempt=attempt,
        step=step,
        begin=min(record.at("start_s") for record in records),
        end=max(record.at("end_s") for record in records),
        blocked_s=max(record.number("blocked_s") for record in records),
        data_s=max(record.number("data_s") for record in records),
        saving=any(bool(record.fields.get("saving")) for record in records),
        tokens=int(sum(record.number("tokens") for record in records)),
        loss=None if loss is None else float(loss),
        finite=all(record.fields.get("finite", True) for record in records),
    )


def attempts(ledger: Ledger) -> list[Attempt]:
    """Every attempt that was opened, in order."""
    by_attempt: dict[int, list[JobStep]] = {}
    for step in job_steps(ledger):
        by_attempt.setdefault(step.attempt, []).append(step)
    opened: dict[int, Record] = {}
    for record in ledger.of_event(Event.ATTEMPT_OPENED):
        if record.attempt is not None:
            opened.setdefault(record.attempt, record)
    return [
        Attempt(number, record.t, int(record.number("step")), tuple(by_attempt.get(number, ())))
        for number, record in sorted(opened.items())
    ]


def rollbacks(of: Sequence[Attempt]) -> list[Rollback]:
    """Between every two neighbours."""
    return [Rollback(before, after) for before, after in itertools.pairwise(of)]


def lost_steps(of: Sequence[Attempt]) -> int:
    """Over all rollbacks."""
    return sum(rollback.lost_steps for rollback in rollbacks(of))


def useful_steps(ledger: Ledger) -> int:
    """Distinct steps in the final state: up to the end if it was reached, else to the newest commit."""
    finished = ledger.of_event(Event.FINISHED, Event.FINAL)
    if finished:
        return max(int(record.fields["step"]) for record in finished)
    commits = ledger.of_event(Event.COMMITTED)
    if not commits:
        return 0
    newest = max(commits, key=lambda record: (record.attempt or 0, int(record.fields["step"])))
    return int(newest.fields["step"])
