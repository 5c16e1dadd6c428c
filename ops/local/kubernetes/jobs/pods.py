"""The pods a Job makes."""

from __future__ import annotations

import json
import secrets

from ops.local.kubernetes.jobs.backoff import FAILURES, IGNORED
from ops.local.kubernetes.jobs.indexes import INDEX
from ops.local.kubernetes.jobs.view import TRACKING, JobView
from ops.local.kubernetes.objects import Object, name_of, namespace_of, owner_reference

_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def new_pod(view: JobView, index: int | None, failures: tuple[int, int]) -> Object:
    """A pod from the Job's template; `failures` are the counted and ignored failures of its index."""
    template: Object = json.loads(json.dumps(view.spec["template"]))
    meta, name = template.get("metadata") or {}, name_of(view.job)
    suffix = "".join(secrets.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
    pod_name = f"{name}-{suffix}" if index is None else f"{name}-{index}-{suffix}"
    pod: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name,
            "namespace": namespace_of(view.job),
            "labels": dict(meta.get("labels") or {}),
            "annotations": dict(meta.get("annotations") or {}),
            "ownerReferences": [owner_reference(view.job)],
            "finalizers": [TRACKING],
        },
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }
    if index is not None:
        _index_pod(view, pod, index, failures)
    return pod


def _index_pod(view: JobView, pod: Object, index: int, failures: tuple[int, int]) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    meta["labels"][INDEX] = str(index)
    meta["annotations"][INDEX] = str(index)
    if view.per_index is not None:
        meta["annotations"][FAILURES] = str(failures[0])
        if failures[1]:
            meta["annotations"][IGNORED] = str(failures[1])
    spec["hostname"] = f"{name_of(view.job)}-{index}"
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{INDEX}']"}}
    for container in [*spec["containers"], *(spec.get("initContainers") or [])]:
        variables = container.setdefault("env", [])
        if not any(v["name"] == _INDEX_VARIABLE for v in variables):
            variables.append({"name": _INDEX_VARIABLE, "valueFrom": source})
