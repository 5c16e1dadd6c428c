"""What clients ask before anything else: versions, groups and resources."""

from __future__ import annotations

from ops.local.kubernetes.errors import ApiError
from ops.local.kubernetes.kinds import DAEMON_SET, JOB, KINDS, POD, SERVICE, Kind
from ops.local.kubernetes.objects import Object

_SHOWN_BY_ALL = (POD, SERVICE, DAEMON_SET, JOB)
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def version_info(kubernetes_version: str) -> Object:
    """`kubectl version`; every field, because the Python client insists."""
    major, minor = kubernetes_version.split(".")[:2]
    build = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform")
    return {"major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.0"} | dict.fromkeys(build, "local")


def core_versions() -> Object:
    """/api"""
    return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}


def group_list() -> Object:
    """/apis"""
    groups = sorted({(k.group, k.version) for k in KINDS if k.group})
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(g, v) for g, v in groups]}


def _group(group: str, version: str) -> Object:
    served = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [served], "preferredVersion": served}


def resource_list(group: str, version: str) -> Object:
    """/api/v1, /apis/batch/v1, …"""
    kinds = [k for k in KINDS if (k.group, k.version) == (group, version)]
    if not kinds:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": kinds[0].api_version,
        "resources": [r for k in kinds for r in _resources(k)],
    }


def _resources(kind: Kind) -> list[Object]:
    common: Object = {"namespaced": kind.namespaced, "kind": kind.kind}
    itself = common | {
        "name": kind.plural,
        "singularName": kind.kind.lower(),
        "shortNames": list(kind.short_names),
        "categories": ["all"] if kind in _SHOWN_BY_ALL else [],
        "verbs": _VERBS,
    }
    return [itself, *(common | _subresource(kind, sub) for sub in kind.subresources)]


def _subresource(kind: Kind, name: str) -> Object:
    verbs = {"log": ["get"], "eviction": ["create"]}.get(name, ["get", "patch", "update"])
    entry: Object = {"name": f"{kind.plural}/{name}", "singularName": "", "verbs": verbs}
    if name == "eviction":  # kubectl drain looks for exactly this before it uses the eviction API
        entry |= {"kind": "Eviction", "group": "policy", "version": "v1"}
    return entry
