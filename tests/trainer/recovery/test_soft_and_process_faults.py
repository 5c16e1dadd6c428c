"""Faults inside a pod: the pod lives, the result is the undisturbed run's, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from small_jobs import StartJob, config, ended_well, fault

pytestmark = pytest.mark.integration


def test_sigkill_then_exception(start: StartJob, undisturbed: dict[str, Any]) -> None:
    """ft_launcher recovers the first, the in-process layer the second."""
    job = start(faults=[fault("sigkill", 18, rank=1), fault("exception", 27, rank=0)])
    ended_well(job, undisturbed)
    opened = {record["attempt"]: record["step"] for record in job.records("restored")}
    assert len(opened) == 3 and opened[1] == 0 and opened[2] >= 10 and opened[3] >= opened[2]
    assert len(job.records("launch_started")) == 2, "a pod was started again"
    detected = {record["event"] for record in job.records("failure_detected", "interrupted")}
    assert detected == {"failure_detected", "interrupted"}


def test_rank_0_may_die(start: StartJob, undisturbed: dict[str, Any]) -> None:
    job = start(faults=[fault("sigkill", 13, rank=0)])
    ended_well(job, undisturbed)


@pytest.mark.parametrize("kind", ["collective_hang", "sigstop", "gil_hang"])
def test_a_hang_is_noticed(start: StartJob, undisturbed: dict[str, Any], kind: str) -> None:
    job = start(faults=[fault(kind, 16, rank=1)])
    ended_well(job, undisturbed)


def test_everything_recovers_without_the_in_process_layer(start: StartJob, undisturbed: dict[str, Any]) -> None:
    faults = [fault("exception", 14), fault("sigkill", 25, rank=0)]
    job = start(config(recovery={"in_process": False}), faults=faults)
    ended_well(job, undisturbed)
    assert len({record["attempt"] for record in job.records("restored")}) == 3


def test_a_gradient_that_is_not_finite_is_left_out(start: StartJob) -> None:
    job = start(faults=[fault("nan", 12)])
    assert set(job.wait(120).values()) == {0}, job.logs()
    bad = {record["step"] for record in job.records("step") if not record["finite"]}
    assert bad == {12} and len({record["attempt"] for record in job.records("restored")}) == 1


@pytest.mark.long
def test_a_gradient_that_is_not_finite_stops_the_attempt_if_so_set(
    start: StartJob, undisturbed: dict[str, Any]
) -> None:
    job = start(config(optimizer={"non_finite": "stop"}), faults=[fault("nan", 12)])
    ended_well(job, undisturbed)


@pytest.mark.long
def test_a_loop_ends_with_93_and_says_where(start: StartJob) -> None:
    """The same error at the same step, whatever is restarted."""
    faults = [fault("exception", 15, rank=0, id=f"again-{n}") for n in range(10)]
    job = start(config(recovery={"max_no_progress_cycles": 2}), faults=faults)
    codes = job.wait(120, "pod")
    assert codes["pod-0"] == codes["pod-1"] == 93, job.logs()
    message = (job.root / "pod-0.termination").read_text()
    assert "step 15, rank 0" in message and "InjectedError" in message


@pytest.mark.long
def test_a_slow_rank_is_named(start: StartJob) -> None:
    settings = config(recovery={"slow_rank_windows": 1})
    job = start(settings, faults=[fault("slow_rank", 1, rank=1, duration_s=0.2, num_steps=30)])
    assert set(job.wait(120).values()) == {0}, job.logs()
    assert {record["slow"] for record in job.records("slow_rank")} == {1}
