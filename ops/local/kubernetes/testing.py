"""For tests of whatever runs on the local cluster: a cluster with an end, and Jobs whose pods obey the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.jobs.backoff import finished_at_s
from ops.local.kubernetes.jobs.indexes import index_of
from ops.local.kubernetes.nodes import NodeSpec
from ops.local.kubernetes.objects import Object, condition, is_finished_pod, is_terminating, name_of, seconds
from ops.local.node.substitutions import Substitutions

_PROJECT = Path(__file__).parents[3]
_POLL_S = 0.02
SLACK_S = 0.4
"""How much later than Kubernetes a loaded machine may act."""

_OBEDIENT = """
import os, signal, sys, time
folder, me, delay, code = (os.environ[n] for n in ("ORDERS", "POD", "TERM_DELAY", "TERM_CODE"))
def end(*_):
    if delay != "never":
        time.sleep(float(delay))
        os._exit(int(code))
signal.signal(signal.SIGTERM, end)
print("started", me, flush=True)
order = os.path.join(folder, me)
while not os.path.exists(order):
    time.sleep(0.02)
os._exit(int(open(order).read()))
"""


def plain_nodes(count: int, *, prefix: str = "node", labels: dict[str, str] | None = None) -> list[NodeSpec]:
    """Untainted nodes with room for many small pods."""
    room = {"cpu": "1000", "memory": "1000Gi"}
    return [NodeSpec(f"{prefix}-{i}", labels or {}, (), room) for i in range(count)]


@contextmanager
def running_cluster(
    state_dir: Path,
    *,
    nodes: Sequence[NodeSpec] | None = None,
    time_scale: float = 0.05,
    network: str | None = None,
    kubernetes_version: str = "1.35",
) -> Iterator[LocalCluster]:
    """A cluster that ends with the block, whatever happens in it."""
    cluster = LocalCluster(state_dir)
    substitutions = Substitutions(state_dir / "fsx", _PROJECT, network=network)
    try:
        cluster.start(plain_nodes(3) if nodes is None else nodes, kubernetes_version, substitutions, time_scale)
        yield cluster
    finally:
        cluster.stop()


class Scenario:
    """One Job in a namespace of its own. Times are Kubernetes seconds; the cluster's scale shortens them."""

    def __init__(self, cluster: LocalCluster, name: str, orders: Path, time_scale: float) -> None:
        self.cluster, self.namespace, self.scale = cluster, name, time_scale
        self._orders = orders
        self._api: Any = cluster.api_client()
        # Any: the client takes plain dictionaries as well as its own models.
        self.core: Any = client.CoreV1Api(self._api)
        self.batch: Any = client.BatchV1Api(self._api)
        self.policy: Any = client.PolicyV1Api(self._api)
        self.started_s = 0.0
        orders.mkdir(parents=True)
        self._create_namespace()

    def _create_namespace(self) -> None:
        self.core.create_namespace({"metadata": {"name": self.namespace}})

    def start(self, spec: Object, *, term: Any = (1, 143), pod: Object | None = None, job: str = "job") -> None:
        """Creates the Job and waits until all its pods are Ready: time 0."""
        self.create(spec, term=term, pod=pod, job=job)
        self.wait(lambda: self.job(job)["status"].get("ready") == spec["parallelism"], 60)
        self.started_s = time.time()

    def create(self, spec: Object, *, term: Any = (1, 143), pod: Object | None = None, job: str = "job") -> None:
        """Creates a Job of obedient pods. `term`: what they do on SIGTERM, (delay, exit code) or "never"."""
        delay, code = ("never", 0) if term == "never" else (term[0] * self.scale, term[1])
        variables = [
            {"name": "ORDERS", "value": str(self._orders)},
            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "TERM_DELAY", "value": str(delay)},
            {"name": "TERM_CODE", "value": str(code)},
        ]
        command = ["python", "-I", "-S", "-c", _OBEDIENT]
        container = {"name": "trainer", "image": "none", "command": command, "env": variables}
        template = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 60, "containers": [container]}
        body = {"metadata": {"name": job}, "spec": spec | {"template": {"spec": template | (pod or {})}}}
        self.batch.create_namespaced_job(self.namespace, body)

    def plain(self, obj: Any) -> Any:
        """A client object as Kubernetes writes it."""
        return self._api.sanitize_for_serialization(obj)

    def job(self, name: str = "job") -> Object:
        """The Job, with a status."""
        found: Object = self.plain(self.batch.read_namespaced_job(name, self.namespace))
        return {"status": {}} | found

    def status(self, *names: str) -> tuple[Any, ...]:
        """Fields of the Job's status; None for absent ones."""
        status = self.job()["status"]
        return tuple(status.get(n) for n in names)

    def pods(self, index: int | None = None) -> list[Object]:
        """Pods, oldest first."""
        found: list[Object] = self.plain(self.core.list_namespaced_pod(self.namespace).items)
        chosen = [p for p in found if index is None or index_of(p) == index]
        return sorted(chosen, key=lambda p: p["metadata"]["creationTimestamp"])

    def living(self, index: int) -> Object | None:
        """The index's pod that runs and is not being deleted."""
        alive = [p for p in self.pods(index) if not is_finished_pod(p) and not is_terminating(p)]
        return alive[-1] if alive else None

    def at(self, time_s: float) -> None:
        """Waits until that Kubernetes second after the start."""
        time.sleep(max(0.0, self.started_s + time_s * self.scale - time.time()))

    def exit(self, index: int, code: int) -> Object:
        """Lets the index's running pod end with a code; returns the pod as it ended."""
        pod = self.living(index)
        assert pod is not None, f"index {index} has no running pod"
        return self._order(pod, code)

    def exit_any(self, code: int) -> Object:
        """The same for the first pod of a Job without indexes."""
        return self._order(self.pods()[0], code)

    def _order(self, pod: Object, code: int) -> Object:
        (self._orders / (name_of(pod) + ".new")).write_text(str(code))
        (self._orders / (name_of(pod) + ".new")).rename(self._orders / name_of(pod))
        return pod

    def replacement(self, pod: Object, limit_s: float = 120) -> tuple[Object, float]:
        """The pod that takes an ended pod's place, running, and the Kubernetes seconds from end to creation."""
        ended_s: list[float] = []

        def newer() -> Object | None:
            pods = self.pods(index_of(pod))
            ended_s.extend(finished_at_s(p) for p in pods if name_of(p) == name_of(pod) and is_finished_pod(p))
            after = [p for p in pods if created_s(p) > created_s(pod)]
            return after[0] if after and after[0]["status"]["phase"] == "Running" else None

        found: Object = self.wait(newer, limit_s)
        return found, (created_s(found) - ended_s[-1]) / self.scale

    def conditions(self) -> dict[str, tuple[str, str]]:
        """The Job's true conditions: reason and message."""
        found = self.job()["status"].get("conditions") or []
        return {c["type"]: (c["reason"], c.get("message", "")) for c in found if c["status"] == "True"}

    def condition_at(self, kind: str) -> float:
        """Kubernetes seconds after the start at which a condition became what it is."""
        found = condition(self.job(), kind)
        assert found is not None, kind
        return (seconds(found["lastTransitionTime"]) - self.started_s) / self.scale

    def wait_for(self, kind: str, limit_s: float = 60) -> None:
        """Until the Job has a condition."""
        self.wait(lambda: kind in self.conditions(), limit_s)

    def wait(self, what: Callable[[], Any], limit_s: float) -> Any:
        """Polls until `what` gives something; fails after so many Kubernetes seconds and a generous rest."""
        deadline = time.monotonic() + limit_s * self.scale + 10.0
        while not (got := what()):
            assert time.monotonic() < deadline, f"still waiting; Job: {self.job()['status']}"
            time.sleep(_POLL_S)
        return got

    def patch(self, **spec: Any) -> None:
        """Changes the Job's spec."""
        self.batch.patch_namespaced_job("job", self.namespace, {"spec": spec})

    def evict(self, index: int) -> Any:
        """Asks for the eviction of the index's pod."""
        pod = self.living(index)
        assert pod is not None
        body = {"metadata": {"name": name_of(pod), "namespace": self.namespace}}
        return self.core.create_namespaced_pod_eviction(name_of(pod), self.namespace, body)


def created_s(pod: Object) -> float:
    """When the API server made it."""
    return seconds(pod["metadata"]["creationTimestamp"])


def finished_s(pod: Object) -> float:
    """When its container ended."""
    return seconds(pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"])


def about(measured_s: float, expected_s: float, scale: float) -> bool:
    """Within the recorded tolerance of -1/+1.5 Kubernetes seconds, and what a loaded machine adds."""
    return expected_s - 1.0 <= measured_s <= expected_s + 1.5 + SLACK_S / scale
