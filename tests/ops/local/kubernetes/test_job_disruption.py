"""Evictions, budgets and nodes that die, hang, lose their cable or are drained, as recorded from real ones."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kubernetes import client

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.jobs.backoff import IGNORED
from ops.local.kubernetes.nodes import UNREACHABLE
from ops.local.kubernetes.objects import annotations_of, condition, finalizers_of, is_terminating, name_of, seconds
from ops.local.kubernetes.testing import SLACK_S, Scenario, about, created_s

pytestmark = pytest.mark.integration

_TOLERATIONS = [
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
        "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    },
}


def _pod(scenario: Scenario, index: int) -> Fields:
    pod = scenario.living(index)
    assert pod is not None
    return pod


def _named(scenario: Scenario, name: str) -> Fields:
    found: Fields = scenario.plain(scenario.core.read_namespaced_pod(name, scenario.namespace))
    return found


def _node(scenario: Scenario, name: str) -> Fields:
    found: Fields = scenario.plain(scenario.core.read_node(name))
    return found


def _deleted_at(scenario: Scenario, pod: Fields) -> float:
    """Kubernetes seconds from the start to the request, the grace left out."""
    meta = pod["metadata"]
    asked_s = seconds(meta["deletionTimestamp"]) - meta["deletionGracePeriodSeconds"]
    return (asked_s - scenario.started_s) / scenario.scale


def test_evict_143(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/"""
    scenario.start(BASE, term=(6, 143))
    pod = _pod(scenario, 1)
    scenario.evict(1)
    scenario.wait(lambda: scenario.status("active", "terminating") == (2, 1), 5)
    found = condition(_named(scenario, name_of(pod)), "DisruptionTarget")
    assert found is not None
    assert (found["status"], found["reason"], found["message"]) == (
        "True",
        "EvictionByEvictionAPI",
        "Eviction API: evicting",
    )
    new, after_s = scenario.replacement(pod)
    assert about(after_s, 10, scenario.scale)
    assert annotations_of(new)[IGNORED] == "1"
    assert new["status"]["podIP"] != pod["status"]["podIP"]
    assert scenario.status("failed") == (None,)


def test_evict_exit0_completes_index(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode (kubernetes#118310)"""
    scenario.start(BASE, term=(3, 0))
    scenario.evict(1)
    scenario.wait(lambda: scenario.status("succeeded", "completedIndexes", "active") == (1, "1", 2), 20)
    scenario.at(20)
    assert scenario.living(1) is None


def test_plain_delete_counts_as_a_failure(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions"""
    scenario.start(BASE)
    pod = _pod(scenario, 1)
    scenario.core.delete_namespaced_pod(name_of(pod), scenario.namespace)
    new, _ = scenario.replacement(pod)
    assert annotations_of(new)["batch.kubernetes.io/job-index-failure-count"] == "1"


def test_pdb_max_unavailable(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/tasks/run-application/configure-pdb/#arbitrary-controllers-and-selectors"""
    scenario.start(BASE)
    selector = {"matchLabels": {"batch.kubernetes.io/job-name": "job"}}
    budget = {"metadata": {"name": "b"}, "spec": {"maxUnavailable": 0, "selector": selector}}
    scenario.policy.create_namespaced_pod_disruption_budget(scenario.namespace, budget)
    with pytest.raises(client.ApiException) as refused:
        scenario.evict(1)
    assert (refused.value.status, refused.value.reason) == (429, "TOO MANY REQUESTS")
    cause = (
        "The disruption budget b does not allow evicting pods currently because it failed sync: "
        "jobs.batch does not implement the scale subresource"
    )
    assert cause in refused.value.body
    scenario.policy.delete_namespaced_pod_disruption_budget("b", scenario.namespace)
    budget["spec"] = {"minAvailable": 2, "selector": selector}
    scenario.policy.create_namespaced_pod_disruption_budget(scenario.namespace, budget)

    def allowed() -> int | None:
        status = scenario.policy.read_namespaced_pod_disruption_budget("b", scenario.namespace).status
        return status.disruptions_allowed if status else None

    scenario.wait(lambda: allowed() == 1, 5)
    scenario.evict(1)
    scenario.wait(lambda: allowed() == 0, 5)
    with pytest.raises(client.ApiException) as second:
        scenario.evict(2)
    assert second.value.status == 429


def test_dead_node_force_delete_is_not_enough(
    cluster: LocalCluster, scenario: Scenario, own_nodes: Fields
) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions"""
    scenario.start(BASE, pod=own_nodes | {"tolerations": _TOLERATIONS})
    pod = _pod(scenario, 0)
    node = pod["spec"]["nodeName"]
    cluster.kill_node(node)
    scenario.wait(lambda: condition(_node(scenario, node), "Ready")["status"] == "Unknown", 60)
    lost_s = seconds(condition(_node(scenario, node), "Ready")["lastTransitionTime"])
    assert about((lost_s - scenario.started_s) / scenario.scale, 50, scenario.scale)
    scenario.wait(lambda: is_terminating(_named(scenario, name_of(pod))), 60)
    driven = _named(scenario, name_of(pod))
    assert about(
        _deleted_at(scenario, driven) - (lost_s - scenario.started_s) / scenario.scale, 30, scenario.scale
    )
    assert condition(driven, "DisruptionTarget")["reason"] == "DeletionByTaintManager"
    time.sleep(10 * scenario.scale)
    scenario.core.delete_namespaced_pod(name_of(pod), scenario.namespace, grace_period_seconds=0)
    time.sleep(30 * scenario.scale)
    left = _named(scenario, name_of(pod))
    assert left["status"]["phase"] == "Running"
    assert finalizers_of(left) == ["batch.kubernetes.io/job-tracking"]
    assert len(scenario.pods(0)) == 1
    body = {"status": {"phase": "Failed"}}
    scenario.core.patch_namespaced_pod_status(name_of(pod), scenario.namespace, body)
    patched_s = time.time()
    new = scenario.wait(lambda: scenario.living(0), 10)
    assert about((created_s(new) - patched_s) / scenario.scale, 1, scenario.scale)
    assert annotations_of(new)[IGNORED] == "1"


def test_dead_node_out_of_service(cluster: LocalCluster, scenario: Scenario, own_nodes: Fields) -> None:
    """https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown"""
    scenario.start(BASE, pod=own_nodes | {"tolerations": _TOLERATIONS})
    pod = _pod(scenario, 0)
    node = pod["spec"]["nodeName"]
    cluster.kill_node(node)
    scenario.at(60)
    cluster.release(node)
    new = scenario.wait(lambda: scenario.living(0), 40)
    after_s = (created_s(new) - scenario.started_s) / scenario.scale
    assert 60 <= after_s <= 60 + 20 + 1 + SLACK_S / scenario.scale
    assert new["spec"]["nodeName"] != node
    assert scenario.status("failed") == (None,)


def test_node_object_deleted(cluster: LocalCluster, scenario: Scenario, own_nodes: Fields) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection"""
    scenario.start(BASE, pod=own_nodes)
    pod = _pod(scenario, 0)
    cluster.remove_node(pod["spec"]["nodeName"])
    new, _ = scenario.replacement(pod)
    after_s = (created_s(new) - scenario.started_s) / scenario.scale
    assert 40 + 9 <= after_s <= 40 + 20 + 20 + 11 + SLACK_S / scenario.scale
    assert annotations_of(new)[IGNORED] == "1"


@pytest.mark.parametrize("fault", ["cut_off", "pause"])
def test_node_comes_back_and_ends_its_terminating_pod(
    cluster: LocalCluster, scenario: Scenario, own_nodes: Fields, fault: str
) -> None:
    """https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller"""
    scenario.start(BASE, pod=own_nodes | {"tolerations": _TOLERATIONS})
    pod = _pod(scenario, 0)
    node = pod["spec"]["nodeName"]
    getattr(cluster, fault)(node)
    scenario.wait(lambda: is_terminating(_named(scenario, name_of(pod))), 120)
    scenario.at(100)
    assert scenario.living(0) is None
    assert _named(scenario, name_of(pod))["status"]["phase"] == "Running"
    cluster.bring_back(node)
    new, after_s = scenario.replacement(pod)
    assert about(after_s, 10, scenario.scale)
    assert new["status"]["podIP"] != pod["status"]["podIP"]
    assert condition(_node(scenario, node), "Ready")["status"] == "True"


def test_drain_evicts_as_the_budget_allows(cluster: LocalCluster, scenario: Scenario, own_nodes: Fields) -> None:
    """https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/"""
    scenario.start(BASE, pod=own_nodes)
    selector = {"matchLabels": {"batch.kubernetes.io/job-name": "job"}}
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 2, "selector": selector}}
    scenario.policy.create_namespaced_pod_disruption_budget(scenario.namespace, budget)
    pod = _pod(scenario, 0)
    node = pod["spec"]["nodeName"]
    cluster.drain(node)
    assert _node(scenario, node)["spec"]["unschedulable"] is True
    new, _ = scenario.replacement(pod)
    assert new["spec"]["nodeName"] != node
    cluster.bring_back(node)
    assert not _node(scenario, node)["spec"].get("unschedulable")
