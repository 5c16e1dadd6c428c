"""The verbs of the API on the store: create, read, list, replace, patch, delete, evict, bind nothing to HTTP."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from ops.local.kubernetes import budgets, deletion
from ops.local.kubernetes.defaults import (
    allocate_cluster_ip,
    default_job,
    default_pod_spec,
    default_service,
    label_job,
    service_addresses,
)
from ops.local.kubernetes.errors import ApiError, bad_request, conflict, invalid, not_found
from ops.local.kubernetes.feature_gates import gates_of
from ops.local.kubernetes.job_validation import job_problems, job_update_problems
from ops.local.kubernetes.kinds import DAEMON_SET, JOB, NAMESPACE, POD, SERVICE, Kind
from ops.local.kubernetes.objects import Object, is_terminating, uid_of
from ops.local.kubernetes.patch import apply_patch
from ops.local.kubernetes.pod_validation import object_problems
from ops.local.kubernetes.schemas import check_schema
from ops.local.kubernetes.store import Ref, Store

_SERVER_FIELDS = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)


@dataclass(frozen=True)
class Api:
    """One cluster's API."""

    store: Store
    kubernetes_version: str
    """`1.35`"""
    service_range: str
    """Addresses of ClusterIP Services, `10.96.0.0/16`."""

    def create(self, kind: Kind, namespace: str | None, obj: Object, *, dry_run: bool = False) -> Object:
        """POST of a collection."""
        obj = self._identify(kind, namespace, obj)
        meta = obj["metadata"]
        for field in _SERVER_FIELDS:
            meta.pop(field, None)
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        if namespace is not None:
            self._require_namespace(namespace)
        self._admit(kind, obj)
        with self.store.changed:
            self._complete(kind, obj)
            return obj if dry_run else self.store.create(obj)

    def _identify(self, kind: Kind, namespace: str | None, obj: Object) -> Object:
        if not isinstance(obj, dict) or not isinstance(obj.get("metadata"), dict):
            raise bad_request(f"the body must be a {kind.kind} with metadata")
        for field, want in (("apiVersion", kind.api_version), ("kind", kind.kind)):
            if obj.setdefault(field, want) != want:
                raise bad_request(f"{field} {obj[field]!r} in the body does not match {want!r} of the address")
        if namespace is not None and obj["metadata"].setdefault("namespace", namespace) != namespace:
            raise bad_request("the namespace of the object does not match the namespace on the request")
        return obj

    def _require_namespace(self, namespace: str) -> None:
        found = self.store.peek(Ref(NAMESPACE, None, namespace))
        if found is None:
            raise not_found(NAMESPACE, namespace)
        if is_terminating(found):
            message = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise ApiError(403, "Forbidden", message)

    def _admit(self, kind: Kind, obj: Object) -> None:
        check_schema(kind, obj, self.kubernetes_version)
        problems = object_problems(kind, obj)
        if kind == JOB:
            default_job(obj)
            problems += job_problems(obj)
        elif kind == POD:
            default_pod_spec(obj["spec"])
        elif kind == SERVICE:
            default_service(obj)
        self._refuse(kind, obj, problems)

    @staticmethod
    def _refuse(kind: Kind, obj: Object, problems: list[tuple[str, str]]) -> None:
        if problems:
            raise invalid(kind, obj["metadata"].get("name", ""), problems)

    def _complete(self, kind: Kind, obj: Object) -> None:
        """What needs the other objects: addresses, selectors, first status."""
        if kind == JOB:
            label_job(obj)
            obj["status"] = {}
        elif kind == POD:
            obj["status"] = {"phase": "Pending"}
        elif kind == NAMESPACE:
            obj["status"] = {"phase": "Active"}
        elif kind == DAEMON_SET:
            default_pod_spec(obj["spec"]["template"]["spec"])
            obj["spec"].setdefault("updateStrategy", {"type": "RollingUpdate"})
        elif kind == SERVICE:
            taken = {s["spec"].get("clusterIP", "") for s in self.store.select(SERVICE)}
            allocate_cluster_ip(obj, service_addresses(self.service_range), taken)

    def replace(self, ref: Ref, obj: Object, *, subresource: str | None = None) -> Object:
        """PUT of an object or of its status."""
        obj = self._identify(ref.kind, ref.namespace, obj)
        expected = obj["metadata"].get("resourceVersion")
        return self.store.modify(ref, lambda old: self._overwrite(ref, old, obj, subresource), expected)

    def patch(
        self, ref: Ref, body: Any, content_type: str, *, subresource: str | None = None, dry_run: bool = False
    ) -> Object:
        """PATCH of an object or of its status."""
        with self.store.changed:
            new = apply_patch(self.store.get(ref), body, content_type)
            if dry_run:
                draft = self.store.get(ref)
                self._overwrite(ref, draft, new, subresource)
                return draft
            expected = body.get("metadata", {}).get("resourceVersion") if isinstance(body, dict) else None
            return self.store.modify(ref, lambda old: self._overwrite(ref, old, new, subresource), expected)

    def _overwrite(self, ref: Ref, old: Object, new: Object, subresource: str | None) -> None:
        before = dict(old)
        if subresource == "status":
            old["status"] = new.get("status", {})
            check_schema(ref.kind, old, self.kubernetes_version)
            return
        new_uid = new["metadata"].get("uid")
        if new_uid and new_uid != uid_of(old):
            why = f"Precondition failed: UID in precondition: {new_uid}, UID in object meta: {uid_of(old)}"
            raise conflict(ref.kind, ref.name, why)
        if new["metadata"].get("name", ref.name) != ref.name:
            raise bad_request("the name of the object does not match the name on the URL")
        kept = {k: old["metadata"][k] for k in _SERVER_FIELDS if k in old["metadata"]}
        kept["resourceVersion"] = old["metadata"]["resourceVersion"]
        for field in (*_SERVER_FIELDS, "managedFields"):
            new["metadata"].pop(field, None)
        status = old.get("status")
        old.clear()
        old.update({k: v for k, v in new.items() if k != "status"})
        old["metadata"].update(kept)
        if status is not None and "status" in ref.kind.subresources:
            old["status"] = status
        elif "status" in new:
            old["status"] = new["status"]
        self._admit(ref.kind, old)
        if ref.kind == JOB:
            self._refuse(JOB, old, job_update_problems(before, old, gates_of(self.kubernetes_version)))

    def apply(self, ref: Ref, obj: Object, *, dry_run: bool = False) -> tuple[Object, bool]:
        """Server-side apply without field ownership: merge into what is there, or create. True if created."""
        if self.store.peek(ref) is not None:
            return self.patch(ref, obj, "application/apply-patch+yaml", dry_run=dry_run), False
        obj.setdefault("metadata", {}).setdefault("name", ref.name)
        return self.create(ref.kind, ref.namespace, obj, dry_run=dry_run), True

    def delete(self, ref: Ref, options: Object) -> Object:
        """DELETE of one object; `options` are DeleteOptions."""
        current = self.store.get(ref)
        wanted_uid = (options.get("preconditions") or {}).get("uid")
        if wanted_uid and wanted_uid != uid_of(current):
            raise conflict(ref.kind, ref.name, f"Precondition failed: UID in precondition: {wanted_uid}")
        if options.get("dryRun"):
            return current
        return deletion.delete(
            self.store,
            ref,
            grace_s=options.get("gracePeriodSeconds"),
            propagation=options.get("propagationPolicy"),
        )

    def evict(self, ref: Ref, eviction: Object) -> Object:
        """POST to a pod's eviction subresource, guarded by disruption budgets."""
        with self.store.changed:
            budgets.claim_disruption(self.store, self.store.get(ref))
            self.store.modify(ref, budgets.mark_evicted)
            options = eviction.get("deleteOptions") or {}
            deletion.delete(self.store, ref, grace_s=options.get("gracePeriodSeconds"))
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
