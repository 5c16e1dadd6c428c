"""What Kubernetes has to do with recovery: nodes, pods, the control pod, stops. All through the command."""

from __future__ import annotations

from typing import Any

import pytest

from ops.local.kubernetes.cluster import ClusterError
from ops.local_world import gpu_node

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

LOSS_FOR_GOOD_S = 3600.0


def fault(class_: str, step: int = 20, rank: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": class_.replace("_", "-"), "class": class_, "rank": rank, "step": step, **more}


def good(result: Any, undisturbed: str) -> dict[str, dict[str, Any]]:
    """The figures by fault class of a run that reached its target with the undisturbed parameters."""
    assert result["end"] == "reached"
    summary = result["summary"]
    assert summary["params_sha256"] == undisturbed
    assert all(item["recovered"] for item in summary["faults"])
    return {item["class"]: item for item in summary["faults"]}


def test_a_spare_takes_over_from_a_lost_node(spare_place: Any, undisturbed: str) -> None:
    process = spare_place.submit("spare", fault("node_loss", duration_s=LOSS_FOR_GOOD_S))
    figures = good(spare_place.end(process), undisturbed)["node_loss"]
    (struck,) = [
        record for record in spare_place.records("spare", "fault_injected") if record["id"] == "node-loss"
    ]
    nodes = {record["node"] for record in spare_place.records("spare", "launch_ended") if record["exit_code"] == 0}
    assert struck["target"] not in nodes and len(nodes) == 2
    assert figures["lost_steps"] > 0 and figures["recovery_s"] > 0


def test_a_finished_run_completes_its_job_though_a_spare_waits(spare_place: Any, undisturbed: str) -> None:
    spare_place.cluster.patch_node("spared-gpu-2", {"spec": {"unschedulable": True}})
    try:
        result = spare_place.steadfast("submit", "--run", "pending")
    finally:
        spare_place.cluster.patch_node("spared-gpu-2", {"spec": {"unschedulable": None}})
    good(result, undisturbed)
    conditions = {c.type for c in spare_place.job("pending").status.conditions if c.status == "True"}
    assert "SuccessCriteriaMet" in conditions
    assert len(spare_place.records("pending", "launch_started")) == 2, "the spare was not pending"


def test_a_released_node_frees_its_index_for_a_pod_on_a_new_node(place: Any, undisturbed: str) -> None:
    process = place.submit("released")
    place.until_step("released", 12, process)
    place.local.kill_node("bare-gpu-0")
    place.steadfast("node release", "bare-gpu-0", "--yes")
    place.local.add_node(gpu_node(place.environment, 2))
    try:
        result = place.end(process)
    finally:
        place.local.bring_back("bare-gpu-0")
        place.local.remove_node("bare-gpu-2")
    good(result, undisturbed)
    ended = [record for record in place.records("released", "launch_ended") if record["exit_code"] == 0]
    assert {record["node"] for record in ended} == {"bare-gpu-1", "bare-gpu-2"}
    assert not place.job("released").status.failed, "a node that was lost is not counted"


def test_the_job_replaces_a_pod_that_was_killed(place: Any, undisturbed: str) -> None:
    process = place.submit("killed", fault("pod_kill", rank=1))
    figures = good(place.end(process), undisturbed)["pod_kill"]
    assert figures["layer"] in ("pod", "gang")
    assert place.job("killed").status.failed == 1
    assert len({record["pod"] for record in place.records("killed", "launch_started")}) == 3


def test_the_same_pods_go_on_without_their_control_pod(place: Any, undisturbed: str) -> None:
    process = place.submit("control", fault("control_loss"))
    figures = good(place.end(process), undisturbed)["control_loss"]
    assert figures["layer"] == "gang"
    pods = [record["pod"] for record in place.records("control", "launch_started")]
    assert len(set(pods)) == 2 and len(pods) >= 4
    assert not place.job("control").status.failed


def test_a_stopped_run_resumes_where_it_stopped(place: Any, undisturbed: str) -> None:
    process = place.submit("stopped")
    place.until_step("stopped", 12, process)
    place.steadfast("stop", "--run", "stopped")
    assert place.end(process, code=6)["end"] == "stopped"
    (step,) = {record["step"] for record in place.records("stopped", "planned_stop")}
    codes = {record["exit_code"] for record in place.records("stopped", "launch_ended")}
    assert codes == {92} and not place.job("stopped").status.failed
    again = place.submit("stopped", resume=True)
    good(place.end(again), undisturbed)
    restored = [record["step"] for record in place.records("stopped", "restored")]
    assert restored[-1] == step, "the stop lost steps"


def test_a_node_is_drained_only_by_force_and_that_is_a_planned_stop(place: Any) -> None:
    process = place.submit("drained")
    place.until_step("drained", 12, process)
    with pytest.raises(ClusterError, match="drained"):  # the disruption budget says no
        place.local.drain("bare-gpu-0", timeout_s=0.5)
    taint = {"key": "maintenance", "value": "now", "effect": "NoExecute"}
    place.cluster.patch_node("bare-gpu-0", {"spec": {"taints": [*_taints(place), taint]}})
    try:
        # The other pod's ft_launcher waits up to 300 s for the one that was told to leave.
        place.until("the drained pod has left", lambda: place.records("drained", "launch_ended"))
        stopped = place.records("drained", "planned_stop")
        assert {record["rank"] for record in stopped} == {0, 1} and len(
            {record["step"] for record in stopped}
        ) == 1
        assert place.records("drained", "launch_ended")[0]["exit_code"] == 92
        committed = {record["step"] for record in place.records("drained", "committed")}
        assert stopped[0]["step"] in committed, "the stop lost steps"
        assert not place.job("drained").status.failed, "a planned stop was counted"
    finally:
        process.terminate()
        process.communicate()
        place.cluster.patch_node("bare-gpu-0", {"spec": {"unschedulable": None, "taints": _taints(place)}})
        place.cluster.delete_submission("drained", 1)


def _taints(place: Any) -> list[dict[str, str]]:
    """What a GPU node always has."""
    return list(gpu_node(place.environment, 0).taints)
