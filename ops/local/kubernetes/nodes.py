"""The node's side of the control plane: heartbeats that stop, taints, and the pods they drive away.

https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ops.local.kubernetes import deletion
from ops.local.kubernetes.kinds import NODE, POD
from ops.local.kubernetes.objects import (
    Object,
    condition_is,
    is_finished_pod,
    is_terminating,
    name_of,
    set_condition,
    timestamp,
    tolerates,
)
from ops.local.kubernetes.store import Store, ref_of

UNREACHABLE = "node.kubernetes.io/unreachable"
_MONITOR_GRACE_S = 50.0
_EVICTION_INTERVAL_S = 10.0
"""One node at a time gets its NoExecute taint: the eviction rate of 0.1 nodes a second."""


@dataclass(frozen=True)
class NodeSpec:
    """One node to bring up. `allocatable` holds quantities: cpu, memory, nvidia.com/gpu, vpc.amazonaws.com/efa."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[dict[str, str], ...] = ()
    allocatable: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> Object:
        """For the daemon's settings."""
        return {
            "name": self.name,
            "labels": self.labels,
            "taints": list(self.taints),
            "allocatable": self.allocatable,
        }

    @staticmethod
    def from_json(data: Object) -> NodeSpec:
        """The reverse."""
        return NodeSpec(data["name"], data["labels"], tuple(data["taints"]), data["allocatable"])


def node_object(spec: NodeSpec, kubernetes_version: str, address: str) -> Object:
    """The Node that a kubelet registers."""
    spread = {"pods": "110", **spec.allocatable}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": {"kubernetes.io/hostname": spec.name, "kubernetes.io/os": "linux", **spec.labels},
        },
        "spec": {"taints": [dict(t) for t in spec.taints], "providerID": f"local:///{spec.name}"},
        "status": {
            "capacity": dict(spread),
            "allocatable": dict(spread),
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": spec.name},
            ],
            "nodeInfo": _node_info(kubernetes_version),
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                    "lastTransitionTime": timestamp(),
                }
            ],
        },
    }


def _node_info(kubernetes_version: str) -> dict[str, str]:
    unknown = ("architecture", "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion")
    names = (*unknown, "machineID", "osImage", "systemUUID")
    return dict.fromkeys(names, "local") | {
        "operatingSystem": "linux",
        "kubeletVersion": f"v{kubernetes_version}.0-local",
    }


class NodeMonitor:
    """Marks nodes without a heartbeat unreachable, and ready again."""

    def __init__(self, store: Store, time_scale: float) -> None:
        self._store = store
        self._scale = time_scale
        self._last_seen_s: dict[str, float] = {}
        self._alive: frozenset[str] = frozenset()
        self._watched_since_s: dict[str, float] = {}
        self._next_eviction_s = 0.0

    def heartbeats(self, nodes: Iterable[str]) -> None:
        """The kubelets that are alive and reach the API now; all others are silent."""
        self._alive = frozenset(nodes)
        self._last_seen_s |= dict.fromkeys(self._alive, time.time())

    def step(self) -> None:
        """Compares every silent node with its last heartbeat.

        One process plays all kubelets and this monitor in turn: where it is slow, a scaled grace may be over
        between a heartbeat and here, and no node has been silent.
        """
        now_s = time.time()
        for node in self._store.select(NODE):
            since_s = self._watched_since_s.setdefault(name_of(node), now_s)
            if name_of(node) in self._alive:
                if _is_tainted(node) or not condition_is(node, "Ready"):
                    self._found(node)
            elif now_s - self._last_seen_s.get(name_of(node), since_s) > _MONITOR_GRACE_S * self._scale:
                self._lost(node, now_s)

    def _lost(self, node: Object, now_s: float) -> None:
        if condition_is(node, "Ready"):
            self._store.try_modify(ref_of(node), _mark_unknown)
            for pod in self._pods_on(node):
                self._store.try_modify(ref_of(pod), lambda p: set_condition(p, "Ready", "False", "NodeNotReady"))
        if not _is_tainted(node) and now_s >= self._next_eviction_s:
            self._next_eviction_s = now_s + _EVICTION_INTERVAL_S * self._scale
            self._store.try_modify(ref_of(node), _taint_unreachable)

    def _pods_on(self, node: Object) -> list[Object]:
        return [p for p in self._store.select(POD) if p["spec"].get("nodeName") == name_of(node)]

    def _found(self, node: Object) -> None:
        def restore(n: Object) -> None:
            set_condition(n, "Ready", "True", "KubeletReady", "kubelet is posting ready status")
            n["spec"]["taints"] = [t for t in n["spec"].get("taints") or [] if t["key"] != UNREACHABLE]

        self._store.try_modify(ref_of(node), restore)


def _is_tainted(node: Object) -> bool:
    taints = node["spec"].get("taints") or []
    return any(t["key"] == UNREACHABLE and t["effect"] == "NoExecute" for t in taints)


def _mark_unknown(node: Object) -> None:
    set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")


def _taint_unreachable(node: Object) -> None:
    taints = [t for t in node["spec"].get("taints") or [] if t["key"] != UNREACHABLE]
    added = {"key": UNREACHABLE, "timeAdded": timestamp()}
    node["spec"]["taints"] = taints + [added | {"effect": effect} for effect in ("NoSchedule", "NoExecute")]


class TaintManager:
    """Deletes pods from nodes with NoExecute taints, after the seconds they tolerate them."""

    def __init__(self, store: Store, time_scale: float) -> None:
        self._store = store
        self._scale = time_scale
        self._since_s: dict[tuple[str, str], float] = {}

    def step(self) -> None:
        """Looks at every pod of every tainted node."""
        now_s = time.time()
        nodes = {name_of(n): n for n in self._store.select(NODE)}
        current: dict[tuple[str, str], float] = {}
        for name, node in nodes.items():
            for taint in node["spec"].get("taints") or []:
                if taint["effect"] == "NoExecute":
                    current[name, taint["key"]] = self._since_s.get((name, taint["key"]), now_s)
        self._since_s = current
        for pod in self._store.select(POD):
            bound = nodes.get(pod["spec"].get("nodeName", ""))
            if bound is not None and not is_terminating(pod) and not is_finished_pod(pod):
                self._judge(pod, bound, now_s)

    def _judge(self, pod: Object, node: Object, now_s: float) -> None:
        for taint in node["spec"].get("taints") or []:
            if taint["effect"] != "NoExecute":
                continue
            allowed_s = _tolerated_s(pod, taint)
            since_s = self._since_s[name_of(node), taint["key"]]
            if allowed_s is not None and now_s >= since_s + allowed_s * self._scale:
                self._drive_away(pod)
                return

    def _drive_away(self, pod: Object) -> None:
        message = "Taint manager: deleting due to NoExecute taint"
        ref = ref_of(pod)
        self._store.try_modify(
            ref, lambda p: set_condition(p, "DisruptionTarget", "True", "DeletionByTaintManager", message)
        )
        if self._store.peek(ref) is not None:
            deletion.delete(self._store, ref)


_IMPLICIT_TOLERATION_S = 300.0


def _tolerated_s(pod: Object, taint: Object) -> float | None:
    """Unscaled seconds until the pod must go; None: it may stay."""
    tolerations = pod["spec"].get("tolerations") or []
    matching = [t for t in tolerations if tolerates([t], taint)]
    if not matching:
        # The admission plug-in DefaultTolerationSeconds gives every pod 300 s for these two.
        implicit = taint["key"] in (UNREACHABLE, "node.kubernetes.io/not-ready")
        return _IMPLICIT_TOLERATION_S if implicit else 0.0
    limits = [float(t["tolerationSeconds"]) for t in matching if t.get("tolerationSeconds") is not None]
    return min(limits) if limits else None
