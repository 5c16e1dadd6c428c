"""The real controllers on a clock that the test moves: hours of a Job's life in a second, at Kubernetes' own pace.

Only the kubelets are played: their pods start at once, end when the test says so, and answer a deletion after a
delay. Everything else is the code that runs behind the local API.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.local.kubernetes import budgets, deletion, endpoints, garbage, scheduler
from ops.local.kubernetes.api import Api
from ops.local.kubernetes.feature_gates import gates_of
from ops.local.kubernetes.jobs.controller import JobController
from ops.local.kubernetes.jobs.indexes import index_of
from ops.local.kubernetes.kinds import BUDGET, JOB, NAMESPACE, NODE, POD
from ops.local.kubernetes.nodes import NodeMonitor, NodeSpec, TaintManager, node_object
from ops.local.kubernetes.objects import (
    Object,
    condition,
    is_finished_pod,
    is_terminating,
    name_of,
    seconds,
    uid_of,
)
from ops.local.kubernetes.store import Ref, Store, ref_of
from ops.local.node.pod_status import ContainerRecord, write_status
from ops.local.node.runtime import Ended, Running

_NAMESPACE = "default"
_BEGINNING_S = 1_800_000_000.0
Term = tuple[float, int] | str


class Scenario:
    """A cluster of three nodes and, usually, one Job. Times are seconds after all its pods were Ready."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, kubernetes_version: str = "1.35") -> None:
        self._gates = gates_of(kubernetes_version)
        self.now_s = _BEGINNING_S
        patch.setattr("time.time", lambda: self.now_s)
        self.store = Store(folder / "objects.sqlite")
        self.api = Api(self.store, kubernetes_version, "10.96.0.0/16")
        self.namespace = _NAMESPACE
        self.started_s = 0.0
        self.step_s = 0.1
        self.dead_nodes: set[str] = set()
        self.linger_s = 0.0
        self.api.create(NAMESPACE, None, {"metadata": {"name": _NAMESPACE}})
        for number in range(3):
            spec = NodeSpec(f"node-{number}", allocatable={"cpu": "100", "memory": "100Gi"})
            self.store.create(node_object(spec, kubernetes_version, "127.0.0.1"))
        self._kubelet = _Kubelet(self)
        self.restart_controllers()

    def restart_controllers(self) -> None:
        """What the controllers remember is gone; what they have written is not."""
        store = self.store
        self._monitor = NodeMonitor(store, 1.0)
        self._steps: list[Callable[[], None]] = [
            JobController(store, 1.0, self._gates).step,
            lambda: scheduler.step(store),
            self._kubelet.step,
            lambda: endpoints.step(store),
            lambda: budgets.step(store),
            self._heartbeats,
            self._monitor.step,
            TaintManager(store, 1.0).step,
            garbage.PodCollector(store, 1.0).step,
            garbage.GarbageCollector(store).step,
            lambda: garbage.expire_jobs(store, 1.0),
        ]

    def _heartbeats(self) -> None:
        self._monitor.heartbeats({name_of(node) for node in self.store.select(NODE)} - self.dead_nodes)

    def run(self, duration_s: float) -> None:
        """Lets time pass."""
        end_s = self.now_s + duration_s
        while self.now_s < end_s - self.step_s / 2:
            self.now_s += self.step_s
            for step in self._steps:
                step()

    def at(self, time_s: float) -> None:
        """Lets time pass until that second after the start."""
        self.run(self.started_s + time_s - self.now_s)

    def wait(self, what: Callable[[], Any], limit_s: float) -> Any:
        """Lets time pass until `what` gives something."""
        end_s = self.now_s + limit_s
        while not (got := what()):
            assert self.now_s < end_s, f"still waiting after {limit_s} s; Jobs: {self.store.select(JOB)}"
            self.run(self.step_s)
        return got

    def start(self, spec: Object, *, term: Term = (1, 143), pod: Object | None = None) -> None:
        """Creates the Job and waits until all its pods are Ready: second 0."""
        self.create(spec, term=term, pod=pod)
        self.wait(lambda: self.status("ready") == (spec["parallelism"],), 10)
        self.started_s = self.now_s

    def create(self, spec: Object, *, term: Term = (1, 143), pod: Object | None = None) -> None:
        """Creates a Job. `term`: what its pods do when they are deleted, (delay, exit code) or "never"."""
        self._kubelet.term = term
        container = {"name": "trainer", "image": "none", "command": ["true"]}
        template = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 60, "containers": [container]}
        whole = spec | {"template": {"spec": template | (pod or {})}}
        self.api.create(JOB, _NAMESPACE, {"metadata": {"name": "job"}, "spec": whole})

    def job(self) -> Object:
        """The Job, with a status; 404 if it is gone."""
        return {"status": {}} | self.store.get(Ref(JOB, _NAMESPACE, "job"))

    def jobs(self) -> list[Object]:
        """All Jobs."""
        return self.store.select(JOB)

    def status(self, *names: str) -> tuple[Any, ...]:
        """Fields of the Job's status; None for absent ones."""
        status = self.job()["status"]
        return tuple(status.get(n) for n in names)

    def conditions(self) -> dict[str, tuple[str, str]]:
        """The Job's true conditions: reason and message."""
        found = self.job()["status"].get("conditions") or []
        return {c["type"]: (c["reason"], c.get("message", "")) for c in found if c["status"] == "True"}

    def condition_at(self, kind: str) -> float:
        """When a condition of the Job became what it is."""
        found = condition(self.job(), kind)
        assert found is not None, kind
        return seconds(found["lastTransitionTime"]) - self.started_s

    def wait_for(self, kind: str, limit_s: float = 60) -> None:
        """Until the Job has a condition."""
        self.wait(lambda: kind in self.conditions(), limit_s)

    def pods(self, index: int | None = None) -> list[Object]:
        """Pods, oldest first."""
        chosen = [p for p in self.store.select(POD) if index is None or index_of(p) == index]
        return sorted(chosen, key=lambda p: p["metadata"]["creationTimestamp"])

    def pod(self, name: str) -> Object:
        """One pod."""
        return self.store.get(Ref(POD, _NAMESPACE, name))

    def node(self, name: str) -> Object:
        """One node."""
        return self.store.get(Ref(NODE, None, name))

    def living(self, index: int) -> Object | None:
        """The index's pod that runs and is not being deleted."""
        alive = [p for p in self.pods(index) if not is_finished_pod(p) and not is_terminating(p)]
        return alive[-1] if alive else None

    def exit(self, index: int, code: int) -> Object:
        """The index's running pod ends with a code; returns the pod as it was."""
        pod = self.living(index)
        assert pod is not None, f"index {index} has no running pod"
        self.end(pod, code)
        return pod

    def end(self, pod: Object, code: int) -> None:
        """A running pod ends with a code."""
        self._kubelet.orders[uid_of(pod)] = code

    def ended_s(self, pod: Object) -> float:
        """When the pod's container ended, though the object may be gone."""
        return self._kubelet.ended_s[uid_of(pod)]

    def replacement(self, pod: Object, limit_s: float = 700) -> tuple[Object, float]:
        """The pod that takes an ended pod's place, and the seconds from the end to its creation."""

        def newer() -> Object | None:
            return next((p for p in self.pods(index_of(pod)) if created_s(p) > created_s(pod)), None)

        found: Object = self.wait(newer, limit_s)
        self.wait(lambda: self.pod(name_of(found))["status"]["phase"] == "Running", 5)
        return self.pod(name_of(found)), created_s(found) - self.ended_s(pod)

    def patch(self, **spec: Any) -> None:
        """Changes the Job's spec."""
        self.api.patch(Ref(JOB, _NAMESPACE, "job"), {"spec": spec}, "application/merge-patch+json")

    def evict(self, index: int) -> None:
        """Asks for the eviction of the index's pod."""
        pod = self.living(index)
        assert pod is not None
        self.api.evict(ref_of(pod), {})

    def delete_pod(self, pod: Object, grace_s: int | None = None) -> None:
        """`kubectl delete pod`, with --force for a grace of 0."""
        self.api.delete(ref_of(pod), {} if grace_s is None else {"gracePeriodSeconds": grace_s})

    def delete_job(self, propagation: str | None = None) -> None:
        """DELETE, with or without a propagation policy."""
        self.api.delete(Ref(JOB, _NAMESPACE, "job"), {"propagationPolicy": propagation} if propagation else {})

    def budget(self, **rule: Any) -> None:
        """Makes or replaces the Job's disruption budget."""
        self.store.remove(Ref(BUDGET, _NAMESPACE, "b"))
        selector = {"matchLabels": {"batch.kubernetes.io/job-name": "job"}}
        body = {"metadata": {"name": "b"}, "spec": rule | {"selector": selector}}
        self.api.create(BUDGET, _NAMESPACE, body)

    def allowed_disruptions(self) -> int | None:
        """The budget's status."""
        found: int | None = (
            self.store.get(Ref(BUDGET, _NAMESPACE, "b")).get("status", {}).get("disruptionsAllowed")
        )
        return found

    def taint_out_of_service(self, node: str) -> None:
        """Says that the instance is really gone."""
        taint = {"key": garbage.OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
        self.store.modify(Ref(NODE, None, node), lambda n: n["spec"].setdefault("taints", []).append(taint))


class _Kubelet:
    """Plays the kubelets of all nodes."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.term: Term = (1, 143)
        self.orders: dict[str, int] = {}
        self.ended_s: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}
        self._terms: dict[str, Term] = {}
        self._addresses: dict[str, str] = {}

    def step(self) -> None:
        for pod in self._scenario.store.select(POD):
            node = pod["spec"].get("nodeName")
            if node is not None and node not in self._scenario.dead_nodes:
                self._look_after(pod)

    def _look_after(self, pod: Object) -> None:
        uid, now_s, store = uid_of(pod), self._scenario.now_s, self._scenario.store
        if is_finished_pod(pod):
            lingers = now_s < self.ended_s[uid] + self._scenario.linger_s
            if is_terminating(pod) and pod["metadata"]["deletionGracePeriodSeconds"] and not lingers:
                deletion.delete(store, ref_of(pod), grace_s=0)
            return
        if uid not in self._addresses:
            self._addresses[uid] = f"10.244.0.{len(self._addresses) + 2}"
            self._terms[uid] = self.term
            self._report(pod, Running(1, now_s))
        elif uid in self.orders:
            self._end(pod, self.orders.pop(uid))
        elif is_terminating(pod):
            asked_s, term = self._asked_s.setdefault(uid, now_s), self._terms[uid]
            if not isinstance(term, str) and now_s >= asked_s + term[0] - self._scenario.step_s / 2:
                self._end(pod, term[1])

    def _end(self, pod: Object, code: int) -> None:
        now_s = self._scenario.now_s
        self.ended_s[uid_of(pod)] = now_s
        self._report(
            pod, Ended(code, seconds(pod["status"]["startTime"]), now_s, "Completed" if code == 0 else "Error")
        )

    def _report(self, pod: Object, state: Running | Ended) -> None:
        record = ContainerRecord(pod["spec"]["containers"][0], begun=True, now=state)
        phase = "Running" if isinstance(state, Running) else "Succeeded" if state.exit_code == 0 else "Failed"
        address = self._addresses[uid_of(pod)]
        self._scenario.store.try_modify(
            ref_of(pod), lambda p: write_status(p, [record], phase, address, "127.0.0.1")
        )


def created_s(pod: Object) -> float:
    """When the API server made it."""
    return seconds(pod["metadata"]["creationTimestamp"])


def about(measured_s: float, expected_s: float) -> bool:
    """Within the tolerance of the recorded times: the controller looks at changes once a second."""
    return expected_s - 1.0 <= measured_s <= expected_s + 1.5
