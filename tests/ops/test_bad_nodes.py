"""A pod that leaves with 91 has its node closed before its replacement is scheduled: processes, the real API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from k8s.names import POOL_GPU, POOL_LABEL
from k8s.training_job import pod_failure_rules
from ops.bad_nodes import CORDONED, BadNodes
from ops.cluster import Cluster, PodState
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.nodes import NodeSpec
from ops.local.kubernetes.testing import running_cluster

NAMESPACE = "default"
SCRIPT = 'case " $BAD " in *" $NODE "*) echo "memlock is limited to 65536 bytes"; exit 91;; esac; sleep 60'


class Nodes:
    """A cluster of three nodes with room for one pod each, and Jobs of two pods."""

    def __init__(self, local: LocalCluster) -> None:
        api: Any = local.api_client()
        self.cluster, self.core, self._batch = (
            Cluster(api, NAMESPACE),
            client.CoreV1Api(api),
            client.BatchV1Api(api),
        )

    def start(self, name: str, *bad: str) -> BadNodes:
        """A Job whose pods find the nodes `bad` unfit."""
        node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        container = {
            "name": "trainer",
            "image": "none",
            "command": ["sh", "-c", SCRIPT],
            "env": [node, {"name": "BAD", "value": " ".join(bad)}],
            "resources": {"requests": {"cpu": "1"}},
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        spec = {"restartPolicy": "Never", "containers": [container], "nodeSelector": {POOL_LABEL: POOL_GPU}}
        job = {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "backoffLimitPerIndex": 100,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": pod_failure_rules()},
            "template": {"spec": spec},
        }
        self._batch.create_namespaced_job(NAMESPACE, {"metadata": {"name": name}, "spec": job})
        return BadNodes(self.cluster)

    def follow(self, job: str, bad: BadNodes, running: int, limit_s: float = 30.0) -> list[str]:
        """Until so many pods run and one has been replaced; what was said meanwhile."""
        said: list[str] = []
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            pods = self.cluster.pods(job)
            said += bad.news(pods)
            if len(pods) > 2 and sum(pod.phase == "Running" for pod in pods) == running:
                return said
            time.sleep(0.05)
        raise TimeoutError(f"{self.cluster.pods(job)} {said}")

    def where(self, job: str) -> dict[str, list[str]]:
        """Nodes by phase."""
        pods = self.cluster.pods(job)
        return {phase: sorted(p.node for p in pods if p.phase == phase) for phase in ("Running", "Failed")}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    room = {"cpu": "1", "memory": "8Gi"}
    specs = [NodeSpec(f"gpu-{number}", {POOL_LABEL: POOL_GPU}, (), room) for number in range(3)]
    with running_cluster(tmp_path / "state", nodes=specs) as local:
        yield Nodes(local)


@pytest.mark.integration
def test_a_replacement_does_not_return_to_the_node_that_was_unfit(nodes: Nodes) -> None:
    said = nodes.follow("one", nodes.start("one", "gpu-0"), running=2)
    assert nodes.where("one") == {"Running": ["gpu-1", "gpu-2"], "Failed": ["gpu-0"]}
    (line,) = said
    assert "gpu-0 is cordoned" in line and "memlock is limited to 65536 bytes" in line
    assert "steadfast node release ENV gpu-0" in line
    node = nodes.core.read_node("gpu-0")
    assert node.spec.unschedulable and node.metadata.annotations[CORDONED].startswith("one-0-")


@pytest.mark.integration
def test_whoever_opens_the_node_again_is_not_overruled_by_one_who_follows_later(nodes: Nodes) -> None:
    nodes.follow("two", nodes.start("two", "gpu-0"), running=2)
    nodes.core.patch_node("gpu-0", {"spec": {"unschedulable": False}})
    assert list(BadNodes(nodes.cluster).news(nodes.cluster.pods("two"))) == []
    assert not nodes.core.read_node("gpu-0").spec.unschedulable


class Played:
    """A cluster of which some nodes are closed for our sake; a patch may be refused."""

    def __init__(self, count: int, closed: int = 0, refusal: int | None = None) -> None:
        self._closed, self._refusal = closed, refusal
        self.patched: list[str] = []
        self._names = [f"gpu-{number}" for number in range(count)]

    def refuse(self, status: int | None) -> None:
        self._refusal = status

    def gpu_nodes(self) -> list[Any]:
        return [self._node(name, number < self._closed) for number, name in enumerate(self._names)]

    @staticmethod
    def _node(name: str, closed: bool) -> Any:
        metadata = SimpleNamespace(name=name, annotations={CORDONED: "another"} if closed else None)
        return SimpleNamespace(metadata=metadata, spec=SimpleNamespace(unschedulable=closed))

    def patch_node(self, name: str, body: dict[str, Any]) -> None:
        if self._refusal:
            raise ApiException(status=self._refusal)
        self.patched.append(name)


def left(node: str) -> PodState:
    return PodState(f"r-1-0-{node}", 0, node, "Failed", "/fsx cannot be written", 91)


@pytest.mark.unit
@pytest.mark.parametrize(("count", "closed", "done"), [(2, 0, True), (1, 0, True), (2, 1, False), (4, 1, True)])
def test_what_most_nodes_have_is_no_fault_of_theirs(count: int, closed: int, done: bool) -> None:
    played: Any = Played(count, closed)
    (line,) = BadNodes(played).news([left(f"gpu-{count - 1}")])
    assert played.patched == ([f"gpu-{count - 1}"] if done else [])
    assert done or "look for what they share" in line


@pytest.mark.unit
def test_who_may_not_cordon_is_told_what_to_ask_for_and_the_run_goes_on() -> None:
    played: Any = Played(2, refusal=403)
    bad = BadNodes(played)
    (line,) = bad.news([left("gpu-1")])
    assert "kubectl cordon gpu-1" in line and "/fsx cannot be written" in line
    assert list(bad.news([left("gpu-1")])) == [], "said once"


@pytest.mark.unit
def test_an_api_that_fails_for_a_moment_is_asked_again() -> None:
    played: Any = Played(2, refusal=503)
    bad = BadNodes(played)
    with pytest.raises(ApiException):
        list(bad.news([left("gpu-1")]))
    played.refuse(None)
    assert len(list(bad.news([left("gpu-1")]))) == 1 and played.patched == ["gpu-1"]


@pytest.mark.unit
def test_a_node_that_goes_meanwhile_does_not_end_the_following() -> None:
    played: Any = Played(2, refusal=404)
    (line,) = BadNodes(played).news([left("gpu-1")])
    assert "gpu-1 is gone" in line


@pytest.mark.unit
def test_other_ends_and_nodes_that_are_gone_are_left_alone() -> None:
    played: Any = Played(2)
    failed = PodState("r-1-0-x", 0, "gpu-0", "Failed", "", 1)
    assert list(BadNodes(played).news([failed, left("gpu-9")])) == [] and played.patched == []
