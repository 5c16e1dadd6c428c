"""All nodes of an environment: runs what is bound to them, reports it, and fails the way nodes fail."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

from ops.local.kubernetes.endpoints import backends
from ops.local.kubernetes.errors import ApiError, not_found
from ops.local.kubernetes.events import record
from ops.local.kubernetes.kinds import NODE, POD, SERVICE
from ops.local.kubernetes.nodes import NodeMonitor
from ops.local.kubernetes.objects import (
    Object,
    annotations_of,
    is_finished_pod,
    name_of,
    uid_of,
)
from ops.local.kubernetes.store import Ref, Store
from ops.local.node import processes
from ops.local.node.cgroups import Cgroups
from ops.local.node.names import Names
from ops.local.node.network import Network
from ops.local.node.pod_files import pod_files
from ops.local.node.pod_worker import NodeServices, PodWorker
from ops.local.node.runtime import Runtime
from ops.local.node.substitutions import Substitutions

STATE = "local.steadfast/state"
_OPERATION_S = 30.0
_RETRY_S = 1.0
UP, KILLED, CUT_OFF, PAUSED = "up", "killed", "cut-off", "paused"


class Kubelet:
    """One object plays the kubelets of all nodes."""

    def __init__(
        self,
        store: Store,
        monitor: NodeMonitor,
        network: Network,
        cgroups: Cgroups,
        substitutions: Substitutions,
        root: Path,
        environment: str,
        time_scale: float,
    ) -> None:
        self._store, self._monitor, self._network = store, monitor, network
        self._names = Names(store, network, root / "addresses")
        self._runtime = Runtime(environment, root / "pods", cgroups)
        self._services = NodeServices(
            environment=environment,
            store=store,
            runtime=self._runtime,
            network=network,
            substitutions=substitutions,
            time_scale=time_scale,
            node_address="127.0.0.1",
            names=self._names,
        )
        self._workers: dict[str, PodWorker] = {}
        self._not_before_s: dict[str, float] = {}
        self._operations: SimpleQueue[tuple[Callable[[], Object], Future[Object]]] = SimpleQueue()
        self._services_known: set[str] = set()
        self._hosts_version = -1
        self._end_strangers()

    def _end_strangers(self) -> None:
        """Ends processes that a dead server has left and that belong to no pod any more."""
        wanted = {uid_of(p) for p in self._store.select(POD) if not is_finished_pod(p)}
        known = {processes.mark_of(self._services.environment, uid) for uid in wanted}
        marks = {mark for _, mark in processes.marked(self._services.environment + "/")}
        for mark in marks - known:
            self._runtime.remove(mark.rpartition("/")[2])

    def step(self) -> None:
        """One look at every node and its pods."""
        self._send_heartbeats()  # a node that goes now was there until now, however long the last look took
        self._run_operations()
        nodes = self._send_heartbeats()
        bound = {uid_of(p): p for p in self._store.select(POD) if p["spec"].get("nodeName")}
        self._point_services()
        self._write_hosts()
        for uid, pod in bound.items():
            left_alone = pod["spec"]["nodeName"] not in nodes and is_finished_pod(pod) and uid in self._workers
            if nodes.get(pod["spec"]["nodeName"]) == UP or left_alone:
                self._look_after(pod)
        self._sweep(bound, nodes)

    def _send_heartbeats(self) -> dict[str, str]:
        """Of the nodes that are up; returns the states of all."""
        nodes = {name_of(n): annotations_of(n).get(STATE, UP) for n in self._store.select(NODE)}
        self._monitor.heartbeats(node for node, state in nodes.items() if state == UP)
        return nodes

    def _look_after(self, pod: Object) -> None:
        """One pod's trouble is told in an event, tried again, and is none of the other pods' business."""
        uid, now_s = uid_of(pod), time.monotonic()
        if now_s < self._not_before_s.get(uid, 0.0):
            return
        try:
            self._worker(pod).step(pod)
            self._not_before_s.pop(uid, None)
        except Exception as error:
            traceback.print_exc()
            self._not_before_s[uid] = now_s + _RETRY_S
            record(self._store, pod, "Warning", "FailedSync", f"{type(error).__name__}: {error}")

    def _worker(self, pod: Object) -> PodWorker:
        uid = uid_of(pod)
        if uid not in self._workers:
            self._workers[uid] = PodWorker(self._services, pod)
        return self._workers[uid]

    def _sweep(self, bound: dict[str, Object], nodes: dict[str, str]) -> None:
        """Removes what is left of pods whose objects are gone, once their node can know it."""
        for uid in [u for u in self._workers if u not in bound]:
            worker = self._workers[uid]
            if nodes.get(worker.node, UP) in (UP, KILLED):
                worker.remove()
                del self._workers[uid]

    def _point_services(self) -> None:
        """ClusterIPs lead to the newest pod behind each Service."""
        present: set[str] = set()
        for service in self._store.select(SERVICE):
            address = service["spec"].get("clusterIP")
            if not address or address == "None" or service["spec"].get("type") != "ClusterIP":
                continue
            present.add(address)
            alive = [p for p in backends(self._store, service) if uid_of(p) in self._workers]
            pods = [p for p in alive if not self._workers[uid_of(p)].released]
            target = pods[0] if pods else None
            uid = uid_of(target) if target else None
            self._network.point_service(address, uid, target["status"]["podIP"] if target else None)
        for address in self._services_known - present:
            self._network.forget_service(address)
        self._services_known = present

    def _write_hosts(self) -> None:
        if self._network.mode != "namespaces" or self._store.version == self._hosts_version:
            return
        self._hosts_version = self._store.version
        for worker in self._workers.values():
            if not worker.released:
                worker.write_hosts(self._names.in_namespace(worker.namespace))

    def operate(self, node: str, operation: str) -> Object:
        """What happens to machines: kill, cut-off, pause, bring-back."""
        ref = Ref(NODE, None, node)
        if self._store.peek(ref) is None:
            raise not_found(NODE, node)
        states = {"kill": KILLED, "cut-off": CUT_OFF, "pause": PAUSED, "bring-back": UP}
        if operation not in states:
            raise ApiError(404, "NotFound", f"unknown operation {operation!r}; known: {', '.join(states)}")
        # Done by the kubelets' own thread: or they might report the end of a pod that dies with its node.
        done: Future[Object] = Future()
        self._operations.put((lambda: self._change_state(ref, states[operation]), done))
        return done.result(_OPERATION_S)

    def _change_state(self, ref: Ref, state: str) -> Object:
        before = annotations_of(self._store.get(ref)).get(STATE, UP)
        if state == UP:
            self._leave(ref.name, before)
        else:
            self._enter(ref.name, state)
        return self._store.modify(ref, lambda n: _set_state(n, state))

    def _run_operations(self) -> None:
        while not self._operations.empty():
            work, done = self._operations.get()
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)

    def _pods_of(self, node: str) -> list[PodWorker]:
        return [w for w in self._workers.values() if w.node == node and not w.released]

    def _enter(self, node: str, state: str) -> None:
        for worker in self._pods_of(node):
            if state == KILLED:
                self._runtime.remove(worker.uid)
                self._network.set_link(worker.uid, up=False)
            elif state == PAUSED or not self._network.set_link(worker.uid, up=False):
                # Without a cable to pull, a cut-off pod is stopped: from outside it looks the same.
                self._runtime.freeze(worker.uid, frozen=True)

    def _leave(self, node: str, state: str) -> None:
        for worker in self._pods_of(node):
            self._network.set_link(worker.uid, up=True)
            if state != KILLED:
                self._runtime.freeze(worker.uid, frozen=False)


def _set_state(node: Object, state: str) -> None:
    node["metadata"].setdefault("annotations", {})[STATE] = state


def remove_everything(
    environment: str, root: Path, network: Network, cgroups: Cgroups, pods: list[Object]
) -> None:
    """Ends an environment's pods and takes all they used away, with or without a server alive."""
    cgroups.freeze("", False)
    cgroups.kill("")
    processes.kill_marked(environment + "/")
    cgroups.remove_all()
    network.remove_all()
    for pod in pods:
        pod_files(environment, root / "pods", pod).remove(logs=True)
