"""What the API refuses about pods and names beyond the schema, in Kubernetes' words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from ops.local.kubernetes.kinds import DAEMON_SET, JOB, POD, Kind
from ops.local.kubernetes.objects import Object
from ops.local.kubernetes.quantities import parse_quantity

Problem = tuple[str, str]

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ANY_NAME = frozenset({"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"})
"""Names with colons and capitals are allowed: `system:node`."""
_OVERCOMMITTED = ("cpu", "memory", "ephemeral-storage")


def object_problems(kind: Kind, obj: Object) -> list[Problem]:
    """Every reason to refuse the object's name, and its pod if it has one."""
    return [
        *_name_problems(kind, obj),
        *(p for spec, at in _pod_specs(kind, obj) for p in _pod_problems(spec, at)),
    ]


def _name_problems(kind: Kind, obj: Object) -> Iterator[Problem]:
    name = obj["metadata"].get("name", "")
    if not name:
        yield "metadata.name", "Required value: name or generateName is required"
    elif kind.kind not in _ANY_NAME and (len(name) > 253 or not _SUBDOMAIN.fullmatch(name)):
        yield "metadata.name", f'Invalid value: "{name}": a lowercase RFC 1123 subdomain is needed'


def _pod_specs(kind: Kind, obj: Object) -> Iterator[tuple[Object, str]]:
    if kind == POD:
        yield obj["spec"], "spec"
    elif kind in (JOB, DAEMON_SET) and isinstance(obj["spec"]["template"].get("spec"), dict):
        yield obj["spec"]["template"]["spec"], "spec.template.spec"


def _pod_problems(spec: Object, at: str) -> Iterator[Problem]:
    volumes = {v["name"] for v in spec.get("volumes") or []}
    seen: set[str] = set()
    for group in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(group) or []):
            where = f"{at}.{group}[{number}]"
            yield from _container_name(container["name"], seen, where)
            yield from _mounts(container, volumes, where)
            yield from _resources(container.get("resources") or {}, f"{where}.resources")
    for number, volume in enumerate(spec.get("volumes") or []):
        size = (volume.get("emptyDir") or {}).get("sizeLimit")
        if size is not None and _quantity(size) is None:
            yield f"{at}.volumes[{number}].emptyDir.sizeLimit", f'Invalid value: "{size}": must be a quantity'


def _container_name(name: str, seen: set[str], where: str) -> Iterator[Problem]:
    if not _LABEL.fullmatch(name):
        yield f"{where}.name", f'Invalid value: "{name}": a lowercase RFC 1123 label is needed'
    if name in seen:
        yield f"{where}.name", f'Duplicate value: "{name}"'
    seen.add(name)


def _mounts(container: Object, volumes: set[str], where: str) -> Iterator[Problem]:
    paths: set[str] = set()
    for number, mount in enumerate(container.get("volumeMounts") or []):
        if mount["name"] not in volumes:
            yield f"{where}.volumeMounts[{number}].name", f'Not found: "{mount["name"]}"'
        if mount["mountPath"] in paths:
            text = f'Invalid value: "{mount["mountPath"]}": must be unique'
            yield f"{where}.volumeMounts[{number}].mountPath", text
        paths.add(mount["mountPath"])


def _resources(resources: Object, where: str) -> Iterator[Problem]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for group, quantities in (("limits", limits), ("requests", requests)):
        for name, text in quantities.items():
            if _quantity(text) is None:
                yield f"{where}.{group}[{name}]", f'Invalid value: "{text}": must be a quantity'
    for name, text in requests.items():
        yield from _request(name, _quantity(text), _quantity(limits.get(name)), where, text)


def _request(name: str, asked: Decimal | None, limit: Decimal | None, where: str, text: str) -> Iterator[Problem]:
    if asked is None:
        return
    if limit is None and name not in _OVERCOMMITTED:
        yield f"{where}.limits", "Required value: Limit must be set for non overcommitable resources"
    elif limit is not None and asked > limit:
        yield f"{where}.requests", f'Invalid value: "{text}": must be less than or equal to {name} limit'
    elif limit is not None and asked != limit and name not in _OVERCOMMITTED:
        yield f"{where}.requests", f'Invalid value: "{text}": must be equal to {name} limit'


def _quantity(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        return parse_quantity(text)
    except ValueError:
        return None
