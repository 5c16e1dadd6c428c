"""What DELETE does: grace for pods, finalizers, and the propagation policies of owners.

https://kubernetes.io/docs/concepts/architecture/garbage-collection/
"""

from __future__ import annotations

import time

from ops.local.kubernetes.kinds import JOB, POD
from ops.local.kubernetes.objects import (
    Object,
    add_finalizer,
    is_finished_pod,
    timestamp,
)
from ops.local.kubernetes.store import Ref, Store

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_DEFAULT_GRACE_S = 30


def delete(store: Store, ref: Ref, *, grace_s: int | None = None, propagation: str | None = None) -> Object:
    """Asks for an object's deletion and returns what is left of it, or what it was."""
    finalizer = _finalizer_of_policy(ref, propagation)

    def ask(obj: Object) -> None:
        if finalizer:
            add_finalizer(obj, finalizer)
        grace = _pod_grace_s(obj, grace_s) if ref.kind == POD else 0
        _mark(obj, grace)

    return store.modify(ref, ask)


def _finalizer_of_policy(ref: Ref, propagation: str | None) -> str | None:
    # Without a policy a batch/v1 Job orphans its pods: a promise to clients older than garbage collection.
    policy = propagation or ("Orphan" if ref.kind == JOB else "Background")
    return {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(policy)


def _pod_grace_s(pod: Object, asked_s: int | None) -> int:
    if is_finished_pod(pod) or not pod["spec"].get("nodeName"):
        return 0
    if asked_s is not None:
        return asked_s
    return int(pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S))


def _mark(obj: Object, grace_s: int) -> None:
    meta = obj["metadata"]
    if meta.get("deletionTimestamp") and grace_s >= meta.get("deletionGracePeriodSeconds", 0):
        return  # a second request may only shorten the grace
    meta["deletionTimestamp"] = timestamp(time.time() + grace_s)
    meta["deletionGracePeriodSeconds"] = grace_s
