"""Jobs whose pods are real processes: the controller, the kubelets and the machine together.

The controllers' timing is proven on a simulated clock (test_job_*.py); here Kubernetes' waits are scaled by 0.05.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.garbage import OUT_OF_SERVICE
from ops.local.kubernetes.nodes import UNREACHABLE
from ops.local.kubernetes.testing import plain_nodes
from ops.local.node import processes

pytestmark = pytest.mark.integration

Fields = dict[str, Any]
TOLERATIONS = [{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]
RULES = [
    {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [93]}},
    {"action": "Ignore", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [92]}},
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
]
# Ends with the code that a file names, and with 92 when it is asked to stop.
OBEDIENT = "trap 'exit 92' TERM; while [ ! -e $ORDERS/$POD ]; do sleep 0.03; done; exit $(cat $ORDERS/$POD)"


class Run:
    """An Indexed Job of two obedient pods on nodes of its own."""

    def __init__(self, cluster: LocalCluster, name: str, orders: Path) -> None:
        self.cluster, self.name = cluster, name
        self._api: Any = cluster.api_client()
        self.core: Any = client.CoreV1Api(self._api)
        self.batch: Any = client.BatchV1Api(self._api)
        self.policy: Any = client.PolicyV1Api(self._api)
        self._orders = orders
        orders.mkdir()
        self.labels = {"run": name}

    def start(self, **spec: Any) -> None:
        """Makes nodes and Job, and waits until both pods run."""
        for node in plain_nodes(3, prefix=self.name, labels=self.labels):
            self.cluster.add_node(node)
        pod = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        container = {
            "name": "trainer",
            "image": "none",
            "command": ["sh", "-c", OBEDIENT],
            "env": [{"name": "ORDERS", "value": str(self._orders)}, pod],
        }
        template = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 10,
            "nodeSelector": self.labels,
            "tolerations": TOLERATIONS,
            "containers": [container],
        }
        base = {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "backoffLimitPerIndex": 6,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": RULES},
            "template": {"spec": template},
        }
        self.batch.create_namespaced_job("default", {"metadata": {"name": self.name}, "spec": base | spec})
        self.until(lambda: self.status.get("ready") == 2)

    @property
    def status(self) -> Fields:
        """The Job's status."""
        job: Fields = self._api.sanitize_for_serialization(self.batch.read_namespaced_job(self.name, "default"))
        return dict(job.get("status") or {})

    def has(self, condition: str) -> bool:
        """The Job has that condition."""
        return any(c["type"] == condition and c["status"] == "True" for c in self.status.get("conditions") or [])

    def pods(self, index: int) -> list[Fields]:
        """The index's pods, oldest first."""
        selector = f"job-name={self.name},batch.kubernetes.io/job-completion-index={index}"
        listed = self.core.list_namespaced_pod("default", label_selector=selector).items
        found: list[Fields] = self._api.sanitize_for_serialization(listed)
        return sorted(found, key=lambda p: str(p["metadata"]["creationTimestamp"]))

    def pod(self, index: int) -> Fields:
        """The newest."""
        return self.pods(index)[-1]

    def order(self, index: int, code: int) -> Fields:
        """The index's pod ends with a code."""
        pod = self.pod(index)
        new = self._orders / "new"
        new.write_text(str(code))
        new.rename(self._orders / pod["metadata"]["name"])
        return pod

    def replaced(self, pod: Fields, index: int) -> Fields:
        """Waits for the pod that runs in its place."""

        def newer() -> Fields | None:
            found = self.pods(index)
            new = [p for p in found if p["metadata"]["uid"] != pod["metadata"]["uid"]]
            return new[-1] if new and new[-1]["status"]["phase"] == "Running" else None

        found: Fields = self.until(newer)
        return found

    def until(self, what: Callable[[], Any], limit_s: float = 40.0) -> Any:
        """Polls until `what` gives something."""
        deadline = time.monotonic() + limit_s
        while not (got := what()):
            assert time.monotonic() < deadline, self.status
            time.sleep(0.03)
        return got

    def processes_of(self, pod: Fields) -> list[int]:
        """pids of the pod, its shim included."""
        mark = processes.mark_of(self.cluster.environment, pod["metadata"]["uid"])
        return [pid for pid, _ in processes.marked(mark)]


@pytest.fixture
def run(cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    made = Run(cluster, request.node.name.removeprefix("test_").replace("_", "-")[:40], tmp_path / "orders")
    yield made
    options = {"propagation_policy": "Background", "grace_period_seconds": 0}
    made.batch.delete_namespaced_job(made.name, "default", **options)
    for node in made.core.list_node(label_selector=f"run={made.name}").items:
        cluster.remove_node(node.metadata.name)


def test_back_off_then_success(run: Run) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index"""
    run.start(successPolicy={"rules": [{"succeededCount": 1}]})
    first = run.order(0, 1)
    second = run.replaced(first, 0)
    assert second["metadata"]["annotations"]["batch.kubernetes.io/job-index-failure-count"] == "1"
    assert second["status"]["podIP"] != first["status"]["podIP"]
    run.until(lambda: run.status.get("failed") == 1)
    left = run.pod(1)
    run.order(0, 0)
    run.until(lambda: run.has("Complete"))
    assert (run.status["succeeded"], run.status["completedIndexes"]) == (1, "0")
    assert run.processes_of(left) == []


def test_fail_job_ends_the_others(run: Run) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy"""
    run.start()
    other = run.pod(1)
    run.order(0, 93)
    run.until(lambda: run.has("Failed"))
    assert run.status["failed"] == 2
    assert run.processes_of(other) == []


def test_suspend_and_resume(run: Run) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job"""
    run.start()
    old = run.pod(0)
    run.batch.patch_namespaced_job(run.name, "default", {"spec": {"suspend": True}})
    run.until(lambda: run.has("Suspended") and not run.pods(0) and not run.pods(1))
    assert run.processes_of(old) == []
    run.batch.patch_namespaced_job(run.name, "default", {"spec": {"suspend": False}})
    run.until(lambda: run.status.get("ready") == 2)
    assert run.status.get("failed") is None


def test_node_killed_and_released(run: Run) -> None:
    """https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown"""
    run.start()
    pod = run.pod(0)
    node = pod["spec"]["nodeName"]
    run.cluster.kill_node(node)
    assert run.processes_of(pod) == []
    run.until(lambda: run.pod(0)["metadata"].get("deletionTimestamp"))
    assert run.pod(0)["status"]["phase"] == "Running"
    run.cluster.release(node)
    new = run.replaced(pod, 0)
    assert new["spec"]["nodeName"] != node
    run.cluster.bring_back(node)
    taints = run.core.read_node(node).spec.taints or []
    assert OUT_OF_SERVICE not in [t.key for t in taints]


def test_node_paused_and_back(run: Run) -> None:
    """https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller"""
    run.start()
    pod = run.pod(0)
    node = pod["spec"]["nodeName"]
    run.cluster.pause(node)
    run.until(lambda: run.pod(0)["metadata"].get("deletionTimestamp"))
    time.sleep(0.5)
    assert len(run.pods(0)) == 1
    assert run.processes_of(pod)
    run.cluster.bring_back(node)
    new = run.replaced(pod, 0)
    assert run.processes_of(pod) == []
    assert run.processes_of(new)


def test_drain_under_a_budget(run: Run) -> None:
    """https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/"""
    run.start()
    selector = {"matchLabels": {"batch.kubernetes.io/job-name": run.name}}
    budget = {"metadata": {"name": run.name}, "spec": {"minAvailable": 1, "selector": selector}}
    run.policy.create_namespaced_pod_disruption_budget("default", budget)
    pod = run.pod(0)
    node = pod["spec"]["nodeName"]
    run.cluster.drain(node)
    new = run.replaced(pod, 0)
    assert new["spec"]["nodeName"] != node
    assert run.status.get("failed") is None
    run.cluster.bring_back(node)
    run.policy.delete_namespaced_pod_disruption_budget(run.name, "default")
