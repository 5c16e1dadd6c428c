"""Event objects: what `kubectl describe` shows under Events."""

from __future__ import annotations

import secrets

from ops.local.kubernetes.kinds import EVENT
from ops.local.kubernetes.objects import Object, name_of, namespace_of, timestamp
from ops.local.kubernetes.store import Store, ref_of

_KEPT_PER_CLUSTER = 500


def record(store: Store, about: Object, level: str, reason: str, message: str) -> None:
    """Records an event about an object; the same event again raises its count."""
    namespace = namespace_of(about) or "default"
    same = _find(store, namespace, about, reason, message)
    now = timestamp()
    if same is not None:
        ref = ref_of(same)
        store.try_modify(ref, lambda e: e.update(count=e.get("count", 1) + 1, lastTimestamp=now))
        return
    store.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name_of(about)}.{secrets.token_hex(8)}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": name_of(about),
                "namespace": namespace_of(about),
                "uid": about["metadata"]["uid"],
            },
            "type": level,
            "reason": reason,
            "message": message,
            "source": {"component": "local"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
    )
    _prune(store)


def _find(store: Store, namespace: str, about: Object, reason: str, message: str) -> Object | None:
    uid = about["metadata"]["uid"]
    for event in store.select(EVENT, namespace):
        if (event["involvedObject"].get("uid"), event["reason"], event["message"]) == (uid, reason, message):
            return event
    return None


def _prune(store: Store) -> None:
    events = store.select(EVENT)
    for event in events[: max(0, len(events) - _KEPT_PER_CLUSTER)]:
        store.remove(ref_of(event))
