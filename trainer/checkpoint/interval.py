"""When to save: every so many steps or seconds, or as often as pays (Young/Daly). Decided by rank 0 alone."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from trainer.config import CheckpointConfig, parse_interval

DAY_S = 86400.0
FIRST_AUTO_STEPS = 20
"""Before anything is measured, `auto` saves at this step, to measure it."""


def young_daly_s(cost_s: float, mtbf_s: float) -> float:
    """The interval between saves of `cost_s` that loses least at one failure per `mtbf_s` (Daly 2006, eq. 37)."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    x = cost_s / (2 * mtbf_s)
    longest_s = math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(x) / 3 + x / 9)
    return max(0.0, longest_s - cost_s)  # the product of two tiny numbers is 0


class SaveCost:
    """What a save takes from training, from the steps beside it: blocked, and slowed down while it is written."""

    def __init__(self) -> None:
        self._undisturbed: deque[float] = deque(maxlen=100)
        self._disturbed: list[float] = []
        self.last_s: float | None = None
        """Of the newest save that is over."""

    def step(self, took_s: float, *, saving: bool) -> None:
        """A step took that long; `saving` if a save began, or was under way, in it."""
        if saving:
            self._disturbed.append(took_s)
            return
        if self._disturbed and self._undisturbed:
            usual_s = statistics.median(self._undisturbed)
            self.last_s = max(0.0, sum(step - usual_s for step in self._disturbed))
        self._disturbed.clear()
        self._undisturbed.append(took_s)


@dataclass
class Interval:
    """Says whether a step's state is to be persisted, and why."""

    config: CheckpointConfig
    last_step: int
    last_s: float
    cost_s: float | None = None
    """Measured: what a save takes from training, blocking and slowing down."""
    persist_s: float | None = None
    """Measured: launch to commit."""
    _put_off: str | None = None

    @property
    def counts_steps(self) -> bool:
        """Whether the interval is a number of steps."""
        return parse_interval(self.config.persist_every)[0] is not None

    @property
    def unmeasured(self) -> bool:
        """Whether `auto` has nothing to go by yet: the first save that is over will tell."""
        auto = parse_interval(self.config.persist_every) == (None, None)
        return auto and (self.cost_s is None or self.persist_s is None)

    def due(self, step: int, now_s: float) -> str | None:
        """The reason to persist the state after `step`, or None."""
        steps, seconds = parse_interval(self.config.persist_every)
        if steps is not None:
            return self._put_off or (f"every {steps} steps" if step % steps == 0 else None)
        if seconds is None:
            return self._auto(step, now_s)
        return f"every {seconds:g} s" if now_s - self.last_s >= seconds else None

    def _auto(self, step: int, now_s: float) -> str | None:
        if self.unmeasured:
            due = step - self.last_step >= FIRST_AUTO_STEPS
            return f"auto: nothing measured yet, first save after {FIRST_AUTO_STEPS} steps" if due else None
        interval_s, inputs = self.choose()
        return inputs if now_s - self.last_s >= interval_s else None

    def choose(self) -> tuple[float, str]:
        """The interval in seconds, and its inputs in words. Never below what the storage takes."""
        cost_s, persist_s = self.cost_s or 0.0, self.persist_s or 0.0
        mtbf_s = DAY_S / self.config.failures_per_day
        best_s = young_daly_s(max(cost_s, 1e-3), mtbf_s)
        interval_s = max(best_s, persist_s)
        return interval_s, (
            f"auto: {interval_s:.1f} s = max(Young/Daly {best_s:.1f} s from a cost of {cost_s:.3f} s a save and "
            f"{self.config.failures_per_day:g} failures a day, {persist_s:.1f} s from launch to commit)"
        )

    def saved(self, step: int, now_s: float) -> None:
        """A persist of `step` has been decided."""
        self.last_step, self.last_s, self._put_off = step, now_s, None

    def put_off(self, reason: str) -> None:
        """It is due, and cannot begin: it stays due."""
        self._put_off = self._put_off or f"{reason}, put off"
