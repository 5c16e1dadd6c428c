"""The columns that `kubectl get` prints, made by the server as Kubernetes does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ops.local.kubernetes.kinds import CLAIM, DAEMON_SET, EVENT, JOB, NODE, PERSISTENT_VOLUME, POD, SERVICE, Kind
from ops.local.kubernetes.objects import Object, condition_is, is_terminating, labels_of, name_of, seconds

Column = tuple[str, Callable[[Object], Any]]
_ROLE = "node-role.kubernetes.io/"


def _age(obj: Object) -> str:
    created = obj["metadata"].get("creationTimestamp")
    return _duration(time.time() - seconds(created)) if created else "<unknown>"


def _duration(total_s: float) -> str:
    whole = max(0, int(total_s))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= 2 * size:
            return f"{whole // size}{unit}"
    return f"{whole}s"


def _containers(pod: Object) -> list[Object]:
    return pod.get("status", {}).get("containerStatuses") or []


def _ready(pod: Object) -> str:
    ready = sum(1 for c in _containers(pod) if c.get("ready"))
    return f"{ready}/{len(pod['spec']['containers'])}"


def _pod_status(pod: Object) -> str:
    if is_terminating(pod):
        return "Terminating"
    for status in _containers(pod):
        for state in ("waiting", "terminated"):
            reason = status.get("state", {}).get(state, {}).get("reason")
            if reason:
                return str(reason)
    return str(pod.get("status", {}).get("phase", "Pending"))


def _restarts(pod: Object) -> int:
    return sum(int(c.get("restartCount", 0)) for c in _containers(pod))


def _job_status(job: Object) -> str:
    if is_terminating(job):
        return "Terminating"
    for kind in ("Complete", "Failed", "Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if condition_is(job, kind):
            return kind
    return "Running"


def _job_completions(job: Object) -> str:
    return f"{job.get('status', {}).get('succeeded', 0)}/{job['spec'].get('completions') or 1}"


def _job_duration(job: Object) -> str:
    start, end = job.get("status", {}).get("startTime"), job.get("status", {}).get("completionTime")
    if not start:
        return ""
    return _duration((seconds(end) if end else time.time()) - seconds(start))


def _node_status(node: Object) -> str:
    ready = "Ready" if condition_is(node, "Ready") else "NotReady"
    return f"{ready},SchedulingDisabled" if node["spec"].get("unschedulable") else ready


def _roles(node: Object) -> str:
    roles = [k.removeprefix(_ROLE) for k in labels_of(node) if k.startswith(_ROLE)]
    return ",".join(roles) or "<none>"


def _status(field: str, default: Any = 0) -> Callable[[Object], Any]:
    return lambda obj: obj.get("status", {}).get(field, default)


def _spec(field: str, default: Any = "<none>") -> Callable[[Object], Any]:
    return lambda obj: obj.get("spec", {}).get(field, default)


def _ports(service: Object) -> str:
    return (
        ",".join(f"{p['port']}/{p.get('protocol', 'TCP')}" for p in service["spec"].get("ports") or []) or "<none>"
    )


def _capacity(obj: Object) -> str:
    return str((obj["spec"].get("capacity") or {}).get("storage", ""))


_COLUMNS: dict[Kind, tuple[Column, ...]] = {
    POD: (
        ("Ready", _ready),
        ("Status", _pod_status),
        ("Restarts", _restarts),
        ("Age", _age),
        ("IP", _status("podIP", "<none>")),
        ("Node", _spec("nodeName")),
    ),
    JOB: (("Status", _job_status), ("Completions", _job_completions), ("Duration", _job_duration), ("Age", _age)),
    NODE: (
        ("Status", _node_status),
        ("Roles", _roles),
        ("Age", _age),
        ("Version", lambda n: n.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", "")),
    ),
    SERVICE: (
        ("Type", _spec("type")),
        ("Cluster-IP", _spec("clusterIP")),
        ("External-IP", lambda _: "<none>"),
        ("Port(s)", _ports),
        ("Age", _age),
    ),
    DAEMON_SET: (
        ("Desired", _status("desiredNumberScheduled")),
        ("Current", _status("currentNumberScheduled")),
        ("Ready", _status("numberReady")),
        ("Up-to-date", _status("updatedNumberScheduled")),
        ("Available", _status("numberAvailable")),
        ("Age", _age),
    ),
    CLAIM: (("Status", _status("phase", "Pending")), ("Volume", _spec("volumeName", "")), ("Age", _age)),
    EVENT: (
        ("Last Seen", lambda e: _duration(time.time() - seconds(e["lastTimestamp"]))),
        ("Type", lambda e: e.get("type", "")),
        ("Reason", lambda e: e.get("reason", "")),
        ("Object", lambda e: f"{e['involvedObject']['kind'].lower()}/{e['involvedObject']['name']}"),
        ("Message", lambda e: e.get("message", "")),
    ),
    PERSISTENT_VOLUME: (("Capacity", _capacity), ("Status", _status("phase", "Available")), ("Age", _age)),
}
_DEFAULT: tuple[Column, ...] = (("Age", _age),)


def as_table(kind: Kind, items: list[Object], version: str) -> Object:
    """A `meta.k8s.io/v1` Table."""
    columns: tuple[Column, ...] = (("Name", name_of), *_COLUMNS.get(kind, _DEFAULT))
    definitions = [
        {
            "name": title,
            "type": "string",
            "format": "name" if title == "Name" else "",
            "description": "",
            "priority": 0,
        }
        for title, _ in columns
    ]
    rows = [
        {
            "cells": [value(item) for _, value in columns],
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"],
            },
        }
        for item in items
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": definitions,
        "rows": rows,
    }
