"""The reference step time, from a control run: same image, cluster and batch, no checkpoint, no fault."""

from __future__ import annotations

import statistics

from pydantic import BaseModel, ConfigDict

from ops.report.buckets import merge, overlap_s
from ops.report.ledger import Ledger
from ops.report.steps import attempts
from trainer.events import Event

WARM_UP_STEPS = 20


class ReferenceTime(BaseModel):
    """Median step time of a control run."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    median_s: float
    spread_s: float
    """Distance between the quartiles."""
    n: int
    """Steps it was taken from."""


def step_times_s(ledger: Ledger, *, skip: int = WARM_UP_STEPS) -> list[float]:
    """From the end of a step to the end of the next, without evaluation and drain; `skip` first ones left out."""
    aside = merge([*ledger.spans(Event.EVALUATION), *ledger.spans(Event.DRAIN)])
    times = []
    for attempt in attempts(ledger):
        for before, step in zip(attempt.steps[skip:], attempt.steps[skip + 1 :], strict=False):
            times.append(step.end - before.end - overlap_s(aside, before.end, step.end))
    return times


def reference_time(ledger: Ledger) -> ReferenceTime | None:
    """None when the run was too short to have one after warm-up."""
    times = step_times_s(ledger)
    if len(times) < 2:
        return None
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return ReferenceTime(median_s=median, spread_s=high - low, n=len(times))
