"""Faults of pods and of the control pod, and stops that are planned."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pods
import psutil
import pytest
from small_jobs import STEPS, StartJob, config, ended_well, fault

from trainer.launcher_log import ORPHANED

pytestmark = pytest.mark.integration


def at_step(number: int) -> Any:
    """Some rank has done step `number`."""

    def happened(records: list[Mapping[str, Any]]) -> bool:
        return any(record["event"] == "step" and record["step"] >= number for record in records)

    return happened


def test_sigterm_to_one_pod_stops_all_with_their_state_saved(start: StartJob, undisturbed: dict[str, Any]) -> None:
    job = start()
    job.until(at_step(12), 90)
    pods.terminate(job, "pod-1")
    codes = job.wait(60, "pod")
    assert codes["pod-0"] == codes["pod-1"] == 92, job.logs()
    stopped = {record["step"] for record in job.records("planned_stop")}
    assert len(stopped) == 1
    terminate_control(job)
    job.start()  # the Job, resumed
    ended_well(job, undisturbed)
    assert max(record["step"] for record in job.records("restored")) == stopped.pop(), "the stop lost steps"


def terminate_control(job: pods.Job) -> None:
    pods.terminate(job, "control")
    assert job.processes["control"].wait(15) == 92


@pytest.mark.long
@pytest.mark.parametrize("event", ["launch_started", "rendezvous_completed", "process_started"])
def test_a_stop_while_the_job_starts_is_a_planned_stop(start: StartJob, event: str) -> None:
    job = start()
    job.until(lambda records: sum(record["event"] == event for record in records) >= 2, 90)
    for name in ("pod-0", "pod-1"):
        pods.terminate(job, name)
    codes = job.wait(60, "pod")
    assert codes["pod-0"] == codes["pod-1"] == 92, job.logs()


def test_the_capacity_blocks_end_stops_the_run(start: StartJob) -> None:
    """Also without the fork server: each rank is an interpreter of its own then."""
    endless = config(recovery={"fork_server": False}, loop={"steps": 1_000_000})
    job = start(endless, environment={"STEADFAST_STOP_AT": str(time.time() + 30)})
    codes = job.wait(120, "pod")
    assert codes["pod-0"] == codes["pod-1"] == 92, job.logs()
    assert {"Capacity Block" in record["reason"] for record in job.records("planned_stop")} == {True}


@pytest.mark.long
def test_the_fork_server_may_die(start: StartJob, undisturbed: dict[str, Any]) -> None:
    """Its children die with it; `trainer.launch` starts it, and ft_launcher, again in the same pod."""
    job = start()
    job.until(at_step(12), 90)
    children = psutil.Process(job.processes["pod-1"].pid).children()
    (server,) = [child for child in children if "trainer.forkserver" in child.cmdline()]
    server.kill()
    ended_well(job, undisturbed)
    assert {r["pod"] for r in job.records("gang_restart")} >= {"test-1-pod-1"}


@pytest.mark.parametrize("how", ["store", pytest.param("pod", marks=pytest.mark.long)])
def test_the_store_may_be_lost(start: StartJob, undisturbed: dict[str, Any], how: str) -> None:
    """The same training pods go on: the Job's failure count stays as it is."""
    job = start()
    job.until(at_step(12), 90)
    lost_s = time.monotonic()
    if how == "store":
        children = psutil.Process(job.processes["control"].pid).children(recursive=True)
        (store,) = [child for child in children if any(c.laddr.port == job.port for c in child.net_connections())]
        store.kill()
    else:
        job.kill_pod("control")
        job.start_control()
    ended_well(job, undisturbed)
    again_s = min(r["mono_s"] for r in job.records("step") if r["attempt"] > 1)
    assert again_s - lost_s <= 45  # 10 to 15 s when nothing else runs; ft_launcher alone took 56 s
    assert len(job.records("gang_restart")) >= 2


def test_a_spare_takes_over_from_a_node_that_is_gone(start: StartJob, undisturbed: dict[str, Any]) -> None:
    job = start(spares=1)
    job.until(at_step(12), 90)
    victim = next(r["pod"] for r in job.records("step") if r["rank"] == 0).removeprefix("test-1-")
    lost_s = time.monotonic()
    job.kill_pod(victim)
    codes = job.wait(120)
    assert sorted(code for name, code in codes.items() if name != victim) == [0, 0, 0], job.logs()
    assert job.completion() == undisturbed
    again_s = min(r["mono_s"] for r in job.records("step") if r["attempt"] > 1)
    assert again_s - lost_s <= 60  # 5 s when nothing else runs


def test_without_a_spare_the_replaced_pod_joins(start: StartJob, undisturbed: dict[str, Any]) -> None:
    job = start()
    job.until(at_step(12), 90)
    job.kill_pod("pod-0")
    time.sleep(2)
    job.start_pod(0)
    ended_well(job, undisturbed)


@pytest.mark.parametrize("spares", [1, pytest.param(0, marks=pytest.mark.long)])
def test_all_nodes_may_be_lost_at_once(start: StartJob, undisturbed: dict[str, Any], spares: int) -> None:
    """NVRx 0.7.0 leaves those who replace them, and the spare, waiting for ever: a node of the round must open the
    next."""
    job = start(spares=spares)
    job.until(at_step(12), 90)
    in_the_round = {r["pod"].removeprefix("test-1-") for r in job.records("step")}  # which, their starts decide
    assert len(in_the_round) == 2
    job.kill_pod(*in_the_round)
    for pod in in_the_round:
        job.start_pod(int(pod.removeprefix("pod-")))
    ended_well(job, undisturbed)
    details = [record["detail"] for record in job.records("failure_detected") if "detail" in record]
    assert any(ORPHANED in detail for detail in details), details


@pytest.mark.long
@pytest.mark.parametrize(("saves", "code"), [(1, 0), (1000, 90)])
def test_a_last_save_that_fails_is_tried_again_as_often_as_tolerated(
    start: StartJob, undisturbed: dict[str, Any], saves: int, code: int
) -> None:
    job = start(faults=[fault("enospc", STEPS, num_steps=saves)])
    codes = job.wait(120, "pod")
    assert codes["pod-0"] == codes["pod-1"] == code, job.logs()
    failed = [record["generation"] for record in job.records("save_failed")]
    assert failed == [f"step-000000{STEPS}.{n}" for n in range(1, 2 if saves == 1 else 4)]
    if code:
        assert "No space left" in (job.root / "pod-1.termination").read_text()
        assert not job.paths.completion.exists()
    else:
        assert job.completion() == undisturbed


@pytest.mark.long
@pytest.mark.parametrize("nodes", [1, 2])
def test_spares_take_over_when_no_lost_pod_is_replaced(
    start: StartJob, undisturbed: dict[str, Any], nodes: int
) -> None:
    job = start(nodes=nodes, spares=nodes)
    job.until(at_step(12), 90)
    victims = {record["pod"].removeprefix("test-1-") for record in job.records("step")}
    job.kill_pod(*victims)
    codes = job.wait(120)
    assert {code for name, code in codes.items() if name not in victims} == {0}, job.logs()
    assert job.completion()["step"] == STEPS and (nodes == 1 or job.completion() == undisturbed)


@pytest.mark.long
def test_a_resumed_run_may_be_extended(start: StartJob) -> None:
    job = start(config(loop={"steps": 20}))
    assert set(job.wait(90).values()) == {0}, job.logs()
    job.config = config(loop={"steps": STEPS})
    job.__post_init__()
    job.start()
    assert set(job.wait(90).values()) == {0}, job.logs()
    assert job.completion()["step"] == STEPS


@pytest.mark.long
def test_another_configuration_is_refused(start: StartJob) -> None:
    job = start(config(loop={"steps": 5}))
    assert set(job.wait(90).values()) == {0}, job.logs()
    job.config = config(loop={"steps": 9}, optimizer={"lr": 1e-5}, recovery={"gang_restarts": 1})
    job.__post_init__()
    job.start()
    job.until(lambda _: "optimizer.lr" in job.logs(400), 60)
