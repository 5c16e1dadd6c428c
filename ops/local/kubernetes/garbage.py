"""Dependents of deleted owners, emptied namespaces, pods nobody will end, finished Jobs with a time to live.

https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from __future__ import annotations

import time

from ops.local.kubernetes import deletion
from ops.local.kubernetes.kinds import JOB, KINDS, NAMESPACE, NODE, POD
from ops.local.kubernetes.objects import (
    Object,
    condition,
    condition_is,
    drop_finalizer,
    finalizers_of,
    is_finished_pod,
    is_terminating,
    name_of,
    seconds,
    set_condition,
    uid_of,
)
from ops.local.kubernetes.store import Store, ref_of

_POD_LOOP_S = 20.0
_QUARANTINE_S = 40.0
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"


class GarbageCollector:
    """Follows ownerReferences."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def step(self) -> None:
        """Deletes what has lost its owner, and lets owners go whose dependents are gone."""
        objects = [o for kind in KINDS for o in self._store.select(kind)]
        uids = {uid_of(o) for o in objects}
        dependents: dict[str, list[Object]] = {}
        for obj in objects:
            for owner in obj["metadata"].get("ownerReferences") or []:
                dependents.setdefault(owner["uid"], []).append(obj)
                if owner["uid"] not in uids and not is_terminating(obj):
                    deletion.delete(self._store, ref_of(obj), propagation="Background")
        for obj in objects:
            if is_terminating(obj):
                self._finish_owner(obj, dependents.get(uid_of(obj), []))
        self._empty_namespaces(objects)

    def _finish_owner(self, owner: Object, dependents: list[Object]) -> None:
        finalizers = finalizers_of(owner)
        if deletion.ORPHAN in finalizers:
            for child in dependents:
                self._store.try_modify(ref_of(child), lambda o: _drop_owner(o, uid_of(owner)))
            self._store.try_modify(ref_of(owner), lambda o: drop_finalizer(o, deletion.ORPHAN))
        elif deletion.FOREGROUND in finalizers:
            for child in dependents:
                if not is_terminating(child):
                    deletion.delete(self._store, ref_of(child), propagation="Foreground")
            if not dependents:
                self._store.try_modify(ref_of(owner), lambda o: drop_finalizer(o, deletion.FOREGROUND))

    def _empty_namespaces(self, objects: list[Object]) -> None:
        for namespace in [o for o in objects if o["kind"] == NAMESPACE.kind and is_terminating(o)]:
            content = [o for o in objects if o["metadata"].get("namespace") == name_of(namespace)]
            for obj in content:
                if not is_terminating(obj):
                    deletion.delete(self._store, ref_of(obj), propagation="Background")
            if not content:
                self._store.try_modify(ref_of(namespace), lambda o: drop_finalizer(o, "kubernetes"))


def _drop_owner(obj: Object, owner_uid: str) -> None:
    rest = [o for o in obj["metadata"].get("ownerReferences") or [] if o["uid"] != owner_uid]
    if rest:
        obj["metadata"]["ownerReferences"] = rest
    else:
        obj["metadata"].pop("ownerReferences", None)


class PodCollector:
    """PodGC: a loop of 20 s, with 40 s of quarantine for nodes that are gone."""

    def __init__(self, store: Store, time_scale: float) -> None:
        self._store = store
        self._scale = time_scale
        self._next_s = 0.0
        self._missing_since_s: dict[str, float] = {}

    def step(self) -> None:
        """Fails pods that no kubelet will end."""
        now_s = time.time()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _POD_LOOP_S * self._scale
        nodes = {name_of(n): n for n in self._store.select(NODE)}
        self._note_missing(nodes, now_s)
        for pod in self._store.select(POD):
            node_name = pod["spec"].get("nodeName")
            if node_name is None:
                if is_terminating(pod):
                    self._fail(pod, None)
            elif node_name not in nodes:
                if now_s - self._missing_since_s[node_name] >= _QUARANTINE_S * self._scale:
                    self._fail(pod, "PodGC: node no longer exists")
            elif is_terminating(pod) and _is_out_of_service(nodes[node_name]):
                self._fail(pod, None)

    def _note_missing(self, nodes: dict[str, Object], now_s: float) -> None:
        named = {p["spec"]["nodeName"] for p in self._store.select(POD) if p["spec"].get("nodeName")}
        missing = named - set(nodes)
        self._missing_since_s = {n: self._missing_since_s.get(n, now_s) for n in missing}

    def _fail(self, pod: Object, disruption: str | None) -> None:
        def fail(p: Object) -> None:
            if is_finished_pod(p):
                return
            p["status"]["phase"] = "Failed"
            if disruption:
                set_condition(p, "DisruptionTarget", "True", "DeletionByPodGC", disruption)

        self._store.try_modify(ref_of(pod), fail)
        if self._store.peek(ref_of(pod)) is not None:
            deletion.delete(self._store, ref_of(pod), grace_s=0)


def _is_out_of_service(node: Object) -> bool:
    taints = node["spec"].get("taints") or []
    return not condition_is(node, "Ready") and any(t["key"] == OUT_OF_SERVICE for t in taints)


def expire_jobs(store: Store, time_scale: float) -> None:
    """ttlSecondsAfterFinished, counted from the Complete or Failed condition."""
    for job in store.select(JOB):
        ttl_s = job["spec"].get("ttlSecondsAfterFinished")
        ends = [c for k in ("Complete", "Failed") if (c := condition(job, k)) and c["status"] == "True"]
        if ttl_s is None or not ends or is_terminating(job):
            continue
        if time.time() >= seconds(ends[0]["lastTransitionTime"]) + ttl_s * time_scale:
            deletion.delete(store, ref_of(job), propagation="Foreground")
