"""Figures of faults whose effect does not begin with their record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ops.report.ledger import Ledger
from ops.report.recovery import FaultFigures, fault_figures
from tests.ops.conftest import Simulator
from trainer.events import Event

pytestmark = pytest.mark.unit

Start = Callable[..., Simulator]


def begun(simulator: Start) -> Simulator:
    job = simulator()
    job.launch()
    job.processes()
    job.open(0)
    job.steps(12)
    return job


def figures(job: Simulator) -> FaultFigures:
    (found,) = fault_figures(Ledger.of(job.rows))
    return found


def test_steps_between_the_record_and_a_blow_from_outside_are_not_its_recovery(simulator: Start) -> None:
    job = begun(simulator)
    job.fault("node_loss")
    job.steps(4)
    job.detect()
    job.processes()
    job.open(10)
    job.steps(20)
    job.finish()
    found = figures(job)
    assert (found.layer, found.lost_steps, found.recovered) == ("launcher", 6, True)
    assert found.detect_s is not None and found.detect_s > 0.4
    assert found.recovery_s is not None and found.recovery_s > 2


@pytest.mark.parametrize("stops", [True, False])
def test_a_loss_that_is_no_number_is_a_recovery_only_where_it_stops_the_attempt(
    simulator: Start, stops: bool
) -> None:
    job = begun(simulator)
    job.fault("nan")
    if stops:
        detail = f"NonFiniteError: step {job.position + 1}: gradient norm nan"
        job.write(Event.INTERRUPTED, 1, layer="in_process", detail=detail, step=job.position + 2)
        job.interrupt()
        job.open(10, layer="in_process")
    job.steps(20)
    job.finish()
    found = figures(job)
    assert found.layer == ("in_process" if stops else "none")
    assert (found.recovery_s or 0) > 0.5 if stops else (found.recovery_s or 0) < 0.2
