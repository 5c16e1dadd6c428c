"""What the CDK's kubectl handler does in the local Kubernetes: create, apply, prune, delete."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubernetes import config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ResourceNotFoundError

from ops.local.aws.cloudformation.errors import ResourceError

Object = dict[str, Any]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
CONFLICT, NOT_FOUND = 409, 404
DELETION_LIMIT_S = 60.0
# kubectl's own list: https://kubernetes.io/docs/tasks/manage-kubernetes-objects/declarative-config/
PRUNED_KINDS = (
    ("v1", "ConfigMap"),
    ("v1", "Endpoints"),
    ("v1", "Namespace"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "PersistentVolume"),
    ("v1", "Pod"),
    ("v1", "ReplicationController"),
    ("v1", "Secret"),
    ("v1", "Service"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("networking.k8s.io/v1", "Ingress"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
)


class Kubectl:
    """One cluster, through the official client."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = dynamic.DynamicClient(config.new_client_from_config(str(kubeconfig)))

    def create(self, objects: list[Object]) -> None:
        """Creates every object; one that exists is an error, as with `kubectl create`."""
        for wanted in objects:
            self._call("create", wanted, body=_annotated(wanted))

    def apply(self, objects: list[Object]) -> None:
        """Creates or changes every object; fields that the last apply set and this one does not are removed."""
        for wanted in objects:
            self._resource(wanted)
            live = self._get(wanted)
            if live is None:
                self._call("create", wanted, body=_annotated(wanted))
                continue
            patch = _patch(_last_applied(live), _annotated(wanted))
            self._call(
                "patch",
                wanted,
                body=patch,
                name=wanted["metadata"]["name"],
                content_type="application/merge-patch+json",
            )

    def prune(self, label: str, kept: list[Object]) -> None:
        """Deletes what carries the label and is not among the kept."""
        names = {_identity(wanted) for wanted in kept}
        stale = [found for found in self._labelled(label) if _identity(found) not in names]
        self.delete(stale)

    def delete(self, objects: list[Object]) -> None:
        """Deletes every object, the last first, and waits until each is gone."""
        for unwanted in reversed(objects):
            try:
                self._call(
                    "delete",
                    unwanted,
                    name=unwanted["metadata"]["name"],
                    body={"propagationPolicy": "Background"},
                )
            except ResourceNotFoundError:
                continue
            except ApiException as error:
                if error.status != NOT_FOUND:
                    raise
        for unwanted in objects:
            self._wait_until_gone(unwanted)

    def replace(self, before: list[Object], after: list[Object]) -> None:
        """Applies `after` and deletes what only `before` had."""
        self.apply(after)
        names = {_identity(wanted) for wanted in after}
        self.delete([found for found in before if _identity(found) not in names])

    def _wait_until_gone(self, unwanted: Object) -> None:
        deadline = time.monotonic() + DELETION_LIMIT_S
        while self._get(unwanted) is not None:
            if time.monotonic() > deadline:
                raise ResourceError(f"timed out waiting for {'/'.join(_identity(unwanted))} to be deleted")
            time.sleep(0.1)

    def _labelled(self, label: str) -> Iterator[Object]:
        for api_version, kind in PRUNED_KINDS:
            try:
                resource = self._client.resources.get(api_version=api_version, kind=kind)
            except ResourceNotFoundError:
                continue
            for item in resource.get(label_selector=label).to_dict().get("items", []):
                yield {**item, "apiVersion": api_version, "kind": kind}

    def _get(self, wanted: Object) -> Object | None:
        try:
            found: Object = self._call("get", wanted, name=wanted["metadata"]["name"]).to_dict()
        except ResourceNotFoundError:
            return None
        except ApiException as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return found

    def _call(self, verb: str, of: Object, **arguments: Any) -> Any:
        resource = self._resource(of)
        if resource.namespaced:
            arguments["namespace"] = of["metadata"].get("namespace", "default")
        return getattr(resource, verb)(**arguments)

    def _resource(self, of: Object) -> Any:
        return self._client.resources.get(api_version=of["apiVersion"], kind=of["kind"])


def _identity(found: Object) -> tuple[str, str, str]:
    metadata = found["metadata"]
    cluster_wide = found["kind"] in ("Namespace", "PersistentVolume")
    namespace = "" if cluster_wide else metadata.get("namespace", "default")
    return found["kind"], namespace, metadata["name"]


def _annotated(wanted: Object) -> Object:
    made = copy.deepcopy(wanted)
    made["metadata"].setdefault("annotations", {})[LAST_APPLIED] = json.dumps(wanted, sort_keys=True)
    return made


def _last_applied(live: Object) -> Object:
    text = live["metadata"].get("annotations", {}).get(LAST_APPLIED, "{}")
    applied: Object = json.loads(text)
    return applied


def _patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """A merge patch: everything of `after`, and null for what only `before` had."""
    patch: Object = {}
    for key in before.keys() - after.keys():
        patch[key] = None
    for key, value in after.items():
        old = before.get(key)
        patch[key] = (
            _patch(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
        )
    return patch


def message_of(error: Exception) -> str:
    """What kubectl would print."""
    if isinstance(error, ApiException):
        try:
            return f"Error from server ({error.reason}): {json.loads(error.body or '')['message']}"
        except (TypeError, ValueError, KeyError):
            return f"Error from server ({error.reason})"
    return f"error: {error}"
