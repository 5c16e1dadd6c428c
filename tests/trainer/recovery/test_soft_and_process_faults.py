"""Faults inside a pod: the pod lives, the result is the undisturbed run's, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pods
import psutil
import pytest
from small_jobs import STEPS, StartJob, config, ended_well, fault

pytestmark = pytest.mark.integration
LONG = pytest.mark.long


def test_sigkill_then_exception(start: StartJob, undisturbed: dict[str, Any]) -> None:
    """ft_launcher recovers the first, the in-process layer the second."""
    # The writer still imports torch while the first steps run: step 18 must not come before step 10 is saved.
    slowly = fault("slow_rank", 1, duration_s=0.5, num_steps=18)
    job = start(faults=[slowly, fault("sigkill", 18, rank=1), fault("exception", 27, rank=0)])
    ended_well(job, undisturbed)
    opened = {record["attempt"]: record["step"] for record in job.records("restored")}
    assert len(opened) == 3 and opened[1] == 0 and opened[2] >= 10 and opened[3] >= opened[2]
    assert len(job.records("launch_started")) == 2, "a pod was started again"
    detected = {record["event"] for record in job.records("failure_detected", "interrupted")}
    assert detected == {"failure_detected", "interrupted"}


@pytest.mark.long
def test_rank_0_may_die(start: StartJob, undisturbed: dict[str, Any]) -> None:
    job = start(faults=[fault("sigkill", 13, rank=0)])
    ended_well(job, undisturbed)


@pytest.mark.parametrize(
    "kind", ["gil_hang", *(pytest.param(k, marks=LONG) for k in ("collective_hang", "sigstop"))]
)
def test_a_hang_is_noticed(start: StartJob, undisturbed: dict[str, Any], kind: str) -> None:
    job = start(faults=[fault(kind, 16, rank=1)])
    ended_well(job, undisturbed)


def test_everything_recovers_without_the_in_process_layer(start: StartJob, undisturbed: dict[str, Any]) -> None:
    faults = [fault("exception", 14), fault("sigkill", 25, rank=0)]
    job = start(config(recovery={"in_process": False}), faults=faults)
    ended_well(job, undisturbed)
    assert len({record["attempt"] for record in job.records("restored")}) == 3


@pytest.mark.parametrize(
    ("in_process", "first", "second"),
    [
        (False, "sigkill", "exception"),
        pytest.param(False, "sigkill", "sigkill", marks=LONG),
        pytest.param(True, "exception", "exception", marks=LONG),
        pytest.param(True, "exception", "sigkill", marks=LONG),
    ],
)
def test_a_fault_during_the_recovery_from_another(
    start: StartJob, undisturbed: dict[str, Any], in_process: bool, first: str, second: str
) -> None:
    """The second strikes before the first step of those who come back, and costs no further attempt."""
    slowly = fault("slow_rank", 1, rank=0, duration_s=0.1, num_steps=16)
    faults = [slowly, fault(first, 16, id="first"), fault(second, 16, id="second", phase="recovery")]
    job = start(config(recovery={"in_process": in_process}), faults=faults)
    ended_well(job, undisturbed)
    assert {r["id"] for r in job.records("fault_injected")} >= {"first", "second"}
    assert [r["attempt"] for r in job.records("attempt_opened")] == [1, 2], "another fault than those two"
    assert len(job.records("launch_started")) == 2, "ft_launcher was started again"


@pytest.mark.long
def test_a_gradient_that_is_not_finite_is_left_out(start: StartJob) -> None:
    job = start(faults=[fault("nan", 12)])
    assert set(job.wait(120).values()) == {0}, job.logs()
    bad = {record["step"] for record in job.records("step") if not record["finite"]}
    assert bad == {12} and len({record["attempt"] for record in job.records("restored")}) == 1


@pytest.mark.long
def test_a_gradient_that_is_not_finite_stops_the_attempt_if_so_set(
    start: StartJob, undisturbed: dict[str, Any]
) -> None:
    """Also at a step that is saved: the state without its update must not be loaded again."""
    faults = [fault("nan", 12), fault("nan", 20), fault("nan", STEPS)]
    job = start(config(optimizer={"non_finite": "stop"}), faults=faults)
    ended_well(job, undisturbed)
    assert len(job.records("fault_injected")) == 3


@pytest.mark.long
def test_a_loop_ends_with_93_and_says_where(start: StartJob) -> None:
    """The same error at the same step, whatever is restarted; until somebody has mended it and resumes the run."""
    faults = [fault("exception", 15, rank=0, id=f"again-{n}") for n in range(10)]
    job = start(config(recovery={"max_no_progress_cycles": 2}), faults=faults)
    codes = job.wait(120, "pod")
    assert codes["pod-0"] == codes["pod-1"] == 93, job.logs()
    message = (job.root / "pod-0.termination").read_text()
    assert "step 15, rank 0" in message and "InjectedError" in message
    job.faults, job.environment = (), {"STEADFAST_SUBMISSION": "2"}
    job.__post_init__()
    job.start()
    assert set(job.wait(90).values()) == {0}, "a resumed run has every try again:\n" + job.logs()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["exception", "sigkill"])
def test_a_loop_that_never_opens_an_attempt_ends_with_93(start: StartJob, kind: str) -> None:
    faults = [fault(kind, 1, phase="load", id=f"load-{n}") for n in range(30)]
    job = start(config(recovery={"max_no_progress_cycles": 2}), faults=faults)
    codes = job.wait(150, "pod")
    assert codes["pod-0"] == codes["pod-1"] == 93, job.logs()
    message = (job.root / "pod-0.termination").read_text()
    assert "2 starts in a row after step 0" in message and "step 1, rank" in message
    assert ("rank 1: InjectedError" if kind == "exception" else "rank 1: killed by SIGKILL") in message


@pytest.mark.long
def test_ft_launchers_own_finding_ends_with_93_in_all_pods(start: StartJob) -> None:
    """Also where the store has closed before the launcher could end: that must not become a gang restart."""
    slowly = fault("slow_rank", 1, rank=0, duration_s=0.1, num_steps=STEPS)
    job = start(
        config(recovery={"max_no_progress_cycles": 2}),
        faults=[slowly, *(fault("sigkill", 26, rank=1, id=f"kill-{n}") for n in range(10))],
    )
    codes = job.wait(150, "pod")
    assert codes["pod-0"] == codes["pod-1"] == 93, job.logs()
    assert not job.records("gang_restart")
    assert "rank 1: killed by SIGKILL" in (job.root / "pod-0.termination").read_text(), (
        "the dead rank is the cause"
    )


@pytest.mark.long
def test_a_damaged_generation_is_passed_over_by_all(start: StartJob, undisturbed: dict[str, Any]) -> None:
    """The memory tier is lost with it, so storage is read: the newest generation fails its checks."""
    settings = config(recovery={"max_no_progress_cycles": 6})
    job = start(
        settings, faults=[fault("slow_rank", 1, duration_s=0.1, num_steps=36), fault("corrupt_checkpoint", 34)]
    )
    ended_well(job, undisturbed)
    (reason,) = {r["detail"] for r in job.records("interrupted") if "damaged" in r["detail"]}
    assert "step-00000030.1" in reason
    assert {r["generation"] for r in job.records("fallback")} == {"step-00000030.1"}
    assert {(r["step"], r["tier"]) for r in job.records("restored") if r["attempt"] == 2} == {(20, "storage")}


@pytest.mark.long
def test_later_starts_have_timeouts_for_the_steps_that_were_measured(start: StartJob) -> None:
    """Ranks and ft_launcher's monitors: the second start's table is written to run.json."""
    recovery = {"collective_timeout_s": None, "heartbeat_timeout_s": None, "termination_grace_s": 300}
    faults = [fault("slow_rank", 1, duration_s=0.4, num_steps=STEPS), fault("sigkill", 29, rank=0)]
    job = start(config(recovery=recovery), faults=faults)
    assert set(job.wait(180).values()) == {0}, job.logs()
    step_s = json.loads(job.paths.learned.read_text())["step_s"]
    timeouts = json.loads(job.paths.run_json.read_text())["timeouts"]
    assert timeouts["collective_s"] == pytest.approx(20 * step_s) and step_s > 0.4


@pytest.mark.long
def test_twenty_faults_leave_nothing_behind(start: StartJob, undisturbed: dict[str, Any]) -> None:
    """Two at once, ten times over: what a rank holds after its tenth restart is what it held after its second."""
    faults = [fault("exception", 12 + 2 * n, rank=rank) for n in range(10) for rank in (0, 1)]
    job = start(config(recovery={"max_no_progress_cycles": 20}), faults=faults)
    held = {attempt: holdings(job, attempt) for attempt in range(2, 12)}
    ended_well(job, undisturbed)
    assert len(job.records("fault_injected")) == 20 and len(job.records("launch_started")) == 2
    assert len({record["pid"] for record in job.records("restored")}) == 2, "a process was started again"
    first, last = held[3], held[11]
    assert last.threads <= first.threads and last.handles <= first.handles and last.shared <= first.shared
    assert last.resident_bytes <= 1.05 * first.resident_bytes


@dataclass(frozen=True)
class Holdings:
    """Of both ranks' processes together."""

    threads: int
    handles: int
    resident_bytes: int
    shared: int
    """Files in the job's shared memory but its slots' records, two a rank: the second comes with step 20."""


def holdings(job: pods.Job, attempt: int) -> Holdings:
    """Once both ranks have done a step of `attempt`."""

    def steps(records: list[Mapping[str, Any]]) -> dict[int, int]:
        return {r["rank"]: r["pid"] for r in records if r["event"] == "step" and r["attempt"] == attempt}

    job.until(lambda records: len(steps(records)) == 2, 90)
    processes = [psutil.Process(pid) for pid in steps(job.records()).values()]
    return Holdings(
        sum(p.num_threads() for p in processes),
        sum(p.num_fds() for p in processes),
        sum(p.memory_info().rss for p in processes),
        sum(1 for path in job.shm.rglob("*") if ".slot" not in path.name),
    )


@pytest.mark.long
def test_a_slow_rank_is_named(start: StartJob) -> None:
    settings = config(recovery={"slow_rank_windows": 1})
    job = start(settings, faults=[fault("slow_rank", 1, rank=1, duration_s=0.2, num_steps=30)])
    assert set(job.wait(120).values()) == {0}, job.logs()
    assert {record["slow"] for record in job.records("slow_rank")} == {1}
