"""Evictions, budgets and nodes that die and come back, as recorded from real ones."""

from __future__ import annotations

from typing import Any

import pytest

from ops.local.kubernetes.errors import ApiError
from ops.local.kubernetes.jobs.backoff import FAILURES, IGNORED
from ops.local.kubernetes.kinds import NODE, POD
from ops.local.kubernetes.nodes import UNREACHABLE
from ops.local.kubernetes.objects import (
    annotations_of,
    condition,
    condition_is,
    finalizers_of,
    is_terminating,
    name_of,
    seconds,
)
from ops.local.kubernetes.store import Ref
from tests.support.simulated_cluster import Scenario, about, created_s

pytestmark = pytest.mark.unit

TOLERATIONS = [
    {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for key in ("node.kubernetes.io/not-ready", UNREACHABLE)
]
Fields = dict[str, Any]
BASE: Fields = {
    "completionMode": "Indexed",
    "completions": 3,
    "parallelism": 3,
    "successPolicy": {"rules": [{"succeededCount": 2}]},
    "podReplacementPolicy": "Failed",
    "backoffLimitPerIndex": 6,
    "podFailurePolicy": {
        "rules": [
            {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [93]}},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
    },
}


def _pod(scenario: Scenario, index: int) -> Fields:
    pod = scenario.living(index)
    assert pod is not None
    return pod


def _condition(obj: Fields, kind: str) -> Fields:
    found = condition(obj, kind)
    assert found is not None
    return found


def _deleted_at(scenario: Scenario, pod: Fields) -> float:
    """When the deletion was asked for, the grace left out."""
    meta = pod["metadata"]
    asked_s = seconds(meta["deletionTimestamp"]) - float(meta["deletionGracePeriodSeconds"])
    return asked_s - scenario.started_s


def _lose_node_of(scenario: Scenario, index: int) -> tuple[Fields, str]:
    """The node's kubelet falls silent for good; returns the pod on it and its name."""
    pod = _pod(scenario, index)
    node = str(pod["spec"]["nodeName"])
    scenario.dead_nodes.add(node)
    return pod, node


def test_evict_143(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/"""
    scenario.start(BASE, term=(6, 143))
    pod = _pod(scenario, 1)
    scenario.evict(1)
    scenario.at(1.2)
    assert scenario.status("active", "terminating") == (2, 1)
    found = _condition(scenario.pod(name_of(pod)), "DisruptionTarget")
    told = (found["status"], found["reason"], found["message"])
    assert told == ("True", "EvictionByEvictionAPI", "Eviction API: evicting")
    new, after_s = scenario.replacement(pod)
    assert about(after_s, 10)
    assert about(created_s(new) - scenario.started_s, 16)
    assert annotations_of(new)[IGNORED] == "1"
    assert scenario.status("failed") == (None,)


def test_evict_exit0_completes_index(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode (kubernetes#118310)"""
    scenario.start(BASE, term=(3, 0))
    scenario.evict(1)
    scenario.wait(lambda: scenario.status("succeeded", "completedIndexes", "active") == (1, "1", 2), 6)
    scenario.at(60)
    assert scenario.living(1) is None


def test_an_evicted_pod_that_says_93_still_fails_the_job(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy"""
    scenario.start(BASE, term=(2, 93))
    scenario.evict(1)
    scenario.wait_for("FailureTarget", 5)
    assert scenario.conditions()["FailureTarget"][0] == "PodFailurePolicy"


def test_plain_delete_counts_as_a_failure(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions"""
    scenario.start(BASE)
    pod = _pod(scenario, 1)
    scenario.delete_pod(pod)
    new, after_s = scenario.replacement(pod)
    assert about(after_s, 10)
    assert annotations_of(new)[FAILURES] == "1"
    assert condition(new, "DisruptionTarget") is None


def test_pdb_max_unavailable(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors"""
    scenario.start(BASE)
    scenario.budget(maxUnavailable=1)
    with pytest.raises(ApiError) as refused:
        scenario.evict(1)
    assert (refused.value.code, refused.value.reason) == (429, "TooManyRequests")
    assert refused.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused.value.details["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b does not allow evicting pods currently because it failed sync: "
            "jobs.batch does not implement the scale subresource",
        }
    ]


def test_pdb_min_available_as_an_integer_works(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/tasks/run-application/configure-pdb/#think-about-how-your-application-reacts-to-disruptions"""
    scenario.start(BASE)
    scenario.budget(minAvailable=2)
    scenario.run(1)
    assert scenario.allowed_disruptions() == 1
    scenario.evict(1)
    scenario.run(0.2)
    assert scenario.allowed_disruptions() == 0
    with pytest.raises(ApiError) as second:
        scenario.evict(2)
    assert second.value.code == 429


def test_dead_node_force_delete_is_not_enough(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions"""
    scenario.start(BASE, pod={"tolerations": TOLERATIONS})
    pod, node = _lose_node_of(scenario, 0)
    scenario.wait(lambda: condition_is(scenario.node(node), "Ready", "Unknown"), 60)
    lost_s = scenario.now_s - scenario.started_s
    assert 48 <= lost_s <= 52
    scenario.wait(lambda: is_terminating(scenario.pod(name_of(pod))), 60)
    driven = scenario.pod(name_of(pod))
    assert about(_deleted_at(scenario, driven), lost_s + 30)
    assert _condition(driven, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    assert condition_is(driven, "Ready", "False")
    scenario.run(45)
    scenario.delete_pod(pod, 0)
    scenario.run(40)
    left = scenario.pod(name_of(pod))
    assert (left["status"]["phase"], left["metadata"]["deletionGracePeriodSeconds"]) == ("Running", 0)
    assert finalizers_of(left) == ["batch.kubernetes.io/job-tracking"]
    assert len(scenario.pods(0)) == 1
    failed = {"status": {"phase": "Failed"}}
    ref = Ref(POD, scenario.namespace, name_of(pod))
    scenario.api.patch(ref, failed, "application/merge-patch+json", subresource="status")
    patched_s = scenario.now_s
    new = scenario.wait(lambda: scenario.living(0), 5)
    assert about(created_s(new) - patched_s, 1)
    assert annotations_of(new)[IGNORED] == "1"


def test_a_dead_node_stays_dead_when_the_controllers_start_again(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller"""
    scenario.start(BASE, pod={"tolerations": TOLERATIONS})
    pod, node = _lose_node_of(scenario, 0)
    scenario.at(60)
    scenario.restart_controllers()
    scenario.run(1)
    assert condition_is(scenario.node(node), "Ready", "Unknown")
    scenario.at(95)
    assert is_terminating(scenario.pod(name_of(pod)))


def test_dead_node_out_of_service(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown"""
    scenario.start(BASE, pod={"tolerations": TOLERATIONS})
    pod, node = _lose_node_of(scenario, 0)
    scenario.at(60)
    scenario.taint_out_of_service(node)
    scenario.run(0.2)
    assert about(_deleted_at(scenario, scenario.pod(name_of(pod))), 60)
    scenario.wait(lambda: scenario.pod(name_of(pod))["status"]["phase"] == "Failed", 20)
    failed_s = scenario.now_s
    new = scenario.wait(lambda: scenario.living(0), 5)
    assert about(created_s(new) - failed_s, 1)
    assert new["spec"].get("nodeName") != node
    assert scenario.status("failed") == (None,)


def test_node_object_deleted(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection"""
    scenario.start(BASE)
    pod, node = _lose_node_of(scenario, 0)
    scenario.store.remove(Ref(NODE, None, node))
    scenario.wait(lambda: scenario.pod(name_of(pod))["status"]["phase"] == "Failed", 90)
    assert 40 <= scenario.now_s - scenario.started_s <= 80
    found = _condition(scenario.pod(name_of(pod)), "DisruptionTarget")
    assert (found["reason"], found["message"]) == ("DeletionByPodGC", "PodGC: node no longer exists")
    failed_s = scenario.now_s
    new = scenario.wait(lambda: scenario.living(0), 20)
    assert about(created_s(new) - failed_s, 10)
    assert annotations_of(new)[IGNORED] == "1"


def test_a_stuck_index_does_not_block_the_others(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy"""
    scenario.start(BASE, pod={"tolerations": TOLERATIONS})
    pod, _ = _lose_node_of(scenario, 0)
    scenario.at(90)
    assert is_terminating(scenario.pod(name_of(pod)))
    assert scenario.status("active", "terminating") == (2, 1)
    _, after_s = scenario.replacement(scenario.exit(1, 1))
    assert about(after_s, 10)
    assert scenario.living(0) is None


def test_four_dead_nodes_are_tainted_one_after_the_other(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/architecture/nodes/#rate-limits-on-eviction"""
    scenario.start(BASE, pod={"tolerations": TOLERATIONS})
    for index in range(3):
        _lose_node_of(scenario, index)
    scenario.at(130)
    deleted = sorted(_deleted_at(scenario, p) for p in scenario.pods())
    for measured_s, expected_s in zip(deleted, (80, 90, 100), strict=True):
        assert about(measured_s, expected_s)


def test_a_node_that_comes_back_ends_its_terminating_pod(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller"""
    scenario.start(BASE, pod={"tolerations": TOLERATIONS})
    pod, node = _lose_node_of(scenario, 0)
    scenario.at(120)
    assert scenario.living(0) is None
    assert scenario.pod(name_of(pod))["status"]["phase"] == "Running"
    scenario.dead_nodes.remove(node)
    new, after_s = scenario.replacement(pod)
    assert about(after_s, 10)
    assert new["status"]["podIP"] != pod["status"]["podIP"]
    assert condition_is(scenario.node(node), "Ready")
    assert not scenario.node(node)["spec"]["taints"]


def test_an_unbound_pod_that_is_deleted_waits_for_the_pod_collector(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection"""
    scenario.create(BASE, pod={"nodeSelector": {"no": "node"}})
    scenario.wait(lambda: len(scenario.pods()) == 3, 5)
    pod = _pod(scenario, 1)
    scenario.delete_pod(pod)
    asked_s = scenario.now_s
    scenario.wait(lambda: scenario.pod(name_of(pod))["status"]["phase"] == "Failed", 21)
    new = scenario.wait(lambda: scenario.living(1), 40)
    assert created_s(new) - asked_s <= 20 + 1.5
    assert annotations_of(new)[FAILURES] == "1"
