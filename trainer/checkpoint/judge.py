"""Rank 0's judgement: what happens to the state after a step. It asks what runs here; all ranks follow it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from trainer.checkpoint.decisions import Action, Decision
from trainer.checkpoint.interval import Interval, SaveCost
from trainer.config import CheckpointConfig
from trainer.events import Event, Ledger


@dataclass(frozen=True)
class Busy:
    """Why no save can begin now."""

    reason: str
    passing: bool = False
    """A matter of steps: a snapshot is being copied and hashed."""


class Asked(Protocol):
    """The part of a backend that is asked."""

    def under_way(self) -> bool:
        """Whether a save is being copied or written."""

    def persisting(self) -> bool:
        """Whether one for storage is: `auto` waits for the first, which measures what it lacks."""

    def stop_seen(self) -> str | None:
        """Why to stop."""

    def busy(self, *, persist: bool, pending: int | None) -> Busy | None:
        """Why no save can begin: to storage, or into memory alone. `pending` is decided and has not begun."""

    def stage(self) -> str:
        """Where snapshots are taken."""

    def failures_in_a_row(self) -> int:
        """Of saves."""

    def persist_s(self) -> float | None:
        """From launch to commit, the last time."""


class Judge:
    """Of one attempt."""

    def __init__(self, config: CheckpointConfig, backend: Asked, ledger: Ledger, restored_step: int) -> None:
        self._config, self._backend, self._ledger = config, backend, ledger
        self._interval = Interval(config, restored_step, time.monotonic())
        self._cost = SaveCost()
        self._decided_s: float | None = None
        self._stopping = False
        self._granted: int | None = None
        self.launched = False
        """A save began since the last judgement."""

    def judge(self, step: int) -> Decision:
        """What happens after `step`; called at the start of the step before, so before that step's own save."""
        decision = self._judge(step)
        if decision.saves:
            self._granted = step
        return decision

    def _judge(self, step: int) -> Decision:
        if (failures := self._backend.failures_in_a_row()) > self._config.tolerate_failures:
            tolerated = self._config.tolerate_failures
            why = f"{failures} saves in a row failed; checkpoint.tolerate_failures is {tolerated}"
            return Decision(step, Action.FAIL, reason=why)
        stage = self._backend.stage()
        if self._stopping:
            return Decision(step, Action.NONE, stage)
        if (wish := self._backend.stop_seen()) is not None:
            self._stopping = True
            return Decision(step, Action.STOP, stage, wish)
        now_s = time.monotonic()
        due = self._interval.due(step, now_s)
        if due is not None and not (self._interval.unmeasured and self._backend.persisting()):
            busy = self._busy(step, persist=True)
            if busy is None:
                self._interval.saved(step, now_s)
                return Decision(step, Action.PERSIST, stage, due)
            return self._instead(step, stage, due, busy)
        every = self._config.snapshot_every
        if not (every and step % every == 0):
            return Decision(step, Action.NONE, stage)
        return self._snapshot(step, stage, f"every {every} steps into memory")

    def _instead(self, step: int, stage: str, due: str, busy: Busy) -> Decision:
        """Of a persist that cannot begin."""
        every = self._config.snapshot_every
        if busy.passing:  # a snapshot of this step would only be in the way of the next one's persist
            self._interval.put_off(due)
            return Decision(step, Action.NONE, stage)
        if self._interval.counts_steps:
            self._ledger.write(Event.SAVE_SKIPPED, step=step, kind="persist", reason=busy.reason)
        elif not (every and step % every == 0):  # due by the clock, it is due at the next step as well
            return Decision(step, Action.NONE, stage)
        # slow storage must not make the memory tier old
        return self._snapshot(step, stage, f"into memory only: {busy.reason}")

    def _snapshot(self, step: int, stage: str, reason: str) -> Decision:
        busy = self._busy(step, persist=False)
        if busy is None:
            return Decision(step, Action.SNAPSHOT, stage, reason)
        self._ledger.write(Event.SAVE_SKIPPED, step=step, kind="snapshot", reason=busy.reason)
        return Decision(step, Action.SKIP, stage, busy.reason)

    def _busy(self, step: int, *, persist: bool) -> Busy | None:
        return self._backend.busy(persist=persist, pending=step - 1 if self._granted == step - 1 else None)

    def time_step(self) -> None:
        """From one judgement to the next: what saves cost."""
        now_s = time.monotonic()
        if self._decided_s is not None:
            self._cost.step(now_s - self._decided_s, saving=self.launched or self._backend.under_way())
        self._decided_s, self.launched = now_s, False
        self._interval.cost_s, self._interval.persist_s = self._cost.last_s, self._backend.persist_s()
