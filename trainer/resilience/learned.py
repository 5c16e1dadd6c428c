"""What earlier attempts of a run have measured, kept beside its generations: timeouts are derived from it.

Rank 0 writes it, every rank reads it when its process starts; an attempt keeps the table it began with.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from trainer.files import write_durably
from trainer.paths import RunPaths
from trainer.timeouts import Timeouts

log = logging.getLogger("steadfast")

WINDOW_STEPS = 20
WORTH_NOTING = 0.25
"""Relative change of the step time below which the file stays as it is: it costs an fsync of training's time."""


def learned_step_s(paths: RunPaths) -> float | None:
    """Median step time of the newest attempt with steps enough; None without one, or without sense."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        step_s = float(json.loads(paths.learned.read_text())["step_s"])
        return step_s if 0 < step_s < float("inf") else None
    return None


def table(derived: Callable[[float | None], Timeouts], step_s: float | None) -> Timeouts:
    """The timeouts for a learned step time; the settings' own where the learned ones contradict each other.

    A run that has begun must be able to go on, so this warns where `RecoveryConfig` refuses.
    """
    learned = derived(step_s)
    if problems := learned.contradictions():
        log.warning("steps of %.3g s want other settings, and those of the start are kept: %s", step_s, problems)
        return derived(None)
    return learned


class StepTimes:
    """Rank 0's measurement."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._window: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._kept_s = learned_step_s(paths) or 0.0

    def add(self, seconds: float) -> None:
        """A step was made. Writes when a full window differs from what is kept; raises nothing."""
        self._window.append(seconds)
        if len(self._window) < WINDOW_STEPS:
            return
        step_s = statistics.median(self._window)
        self._window.clear()
        if abs(step_s - self._kept_s) <= WORTH_NOTING * self._kept_s:
            return
        try:
            write_durably(self._paths.learned, json.dumps({"step_s": step_s}).encode())
            self._kept_s = step_s
        except OSError as error:
            log.warning("the measured step time was not kept: %s", error)
