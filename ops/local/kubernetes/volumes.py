"""PersistentVolumes and claims: bound at once, as far as they name each other.

https://kubernetes.io/docs/concepts/storage/persistent-volumes/#binding
"""

from __future__ import annotations

from ops.local.kubernetes.kinds import CLAIM, PERSISTENT_VOLUME
from ops.local.kubernetes.objects import Object, name_of, namespace_of, uid_of
from ops.local.kubernetes.store import Store, ref_of


def step(store: Store) -> None:
    """Binds every claim that a free volume satisfies."""
    for volume in store.select(PERSISTENT_VOLUME):
        if not volume.get("status", {}).get("phase"):
            store.try_modify(ref_of(volume), lambda v: v.update(status={"phase": "Available"}))
    for claim in store.select(CLAIM):
        if claim.get("status", {}).get("phase") != "Bound":
            _bind(store, claim)


def _bind(store: Store, claim: Object) -> None:
    volume = next((v for v in store.select(PERSISTENT_VOLUME) if _fits(v, claim)), None)
    if volume is None:
        return

    def bind_claim(c: Object) -> None:
        c["spec"]["volumeName"] = name_of(volume)
        c["status"] = {
            "phase": "Bound",
            "accessModes": volume["spec"].get("accessModes", []),
            "capacity": volume["spec"].get("capacity", {}),
        }

    def bind_volume(v: Object) -> None:
        v["spec"]["claimRef"] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace_of(claim),
            "name": name_of(claim),
            "uid": uid_of(claim),
        }
        v["status"] = {"phase": "Bound"}

    with store.atomically():
        store.modify(ref_of(claim), bind_claim)
        store.modify(ref_of(volume), bind_volume)


def _fits(volume: Object, claim: Object) -> bool:
    wanted = claim["spec"].get("volumeName")
    reserved = volume["spec"].get("claimRef")
    if wanted and wanted != name_of(volume):
        return False
    if reserved and (reserved.get("namespace"), reserved.get("name")) != (namespace_of(claim), name_of(claim)):
        return False
    same_class = (volume["spec"].get("storageClassName") or "") == (claim["spec"].get("storageClassName") or "")
    modes = set(claim["spec"].get("accessModes") or []) <= set(volume["spec"].get("accessModes") or [])
    return same_class and modes
