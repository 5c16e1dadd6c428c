"""A container's environment variables, command and arguments, made from the manifest.

https://kubernetes.io/docs/tasks/inject-data-application/
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

from ops.local.kubernetes.kinds import CONFIG_MAP, SECRET, Kind
from ops.local.kubernetes.objects import Object, annotations_of, labels_of, namespace_of
from ops.local.kubernetes.quantities import parse_quantity
from ops.local.kubernetes.store import Ref, Store
from ops.local.node.substitutions import rewrite_path

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_.][A-Za-z0-9_.-]*)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """The container cannot be made: its manifest names something that is not there."""


def expand(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` by the variables defined so far; unknown names stay, `$$(NAME)` is an escape."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def config_data(store: Store, kind: Kind, namespace: str, name: str) -> dict[str, str] | None:
    """The decoded entries of a ConfigMap or a Secret."""
    found = store.peek(Ref(kind, namespace, name))
    if found is None:
        return None
    if kind == CONFIG_MAP:
        return dict(found.get("data") or {})
    encoded = {k: base64.b64decode(v).decode() for k, v in (found.get("data") or {}).items()}
    return encoded | (found.get("stringData") or {})


def container_variables(
    store: Store, pod: Object, container: Object, mounts: dict[str, Path], rewrite: Callable[[str], str]
) -> dict[str, str]:
    """All variables of the manifest in order, with mount paths and, by `rewrite`, names replaced."""
    values: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        values |= _from_source(store, pod, source)
    for entry in container.get("env") or []:
        raw = (
            str(entry.get("value", "")) if "valueFrom" not in entry else _value_from(store, pod, container, entry)
        )
        if raw is None:
            continue
        values[entry["name"]] = rewrite(expand(rewrite_path(raw, mounts), values))
    return values


def _from_source(store: Store, pod: Object, source: Object) -> dict[str, str]:
    kind, ref = (CONFIG_MAP, source["configMapRef"]) if "configMapRef" in source else (SECRET, source["secretRef"])
    data = config_data(store, kind, str(namespace_of(pod)), ref["name"])
    if data is None:
        if ref.get("optional"):
            return {}
        raise ConfigError(f'{kind.kind.lower()} "{ref["name"]}" not found')
    prefix = source.get("prefix", "")
    return {prefix + k: v for k, v in data.items()}


def _value_from(store: Store, pod: Object, container: Object, entry: Object) -> str | None:
    source = entry["valueFrom"]
    if "fieldRef" in source:
        return pod_field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return _resource_field(container, source["resourceFieldRef"])
    kind, ref = (CONFIG_MAP, source.get("configMapKeyRef")) if "configMapKeyRef" in source else (SECRET, None)
    ref = ref or source["secretKeyRef"]
    data = config_data(store, kind, str(namespace_of(pod)), ref["name"])
    if data is None or ref["key"] not in data:
        if ref.get("optional"):
            return None
        what = f'{kind.kind.lower()} "{ref["name"]}" not found' if data is None else f"no key {ref['key']!r}"
        raise ConfigError(f"variable {entry['name']}: {what}")
    return data[ref["key"]]


def pod_field(pod: Object, path: str) -> str:
    """The downward API's fieldRef."""
    keyed = _KEYED.fullmatch(path)
    if keyed:
        source = labels_of(pod) if keyed[1] == "labels" else annotations_of(pod)
        return source.get(keyed[2], "")
    status = pod.get("status", {})
    simple = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": namespace_of(pod) or "",
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.hostIP": status.get("hostIP", ""),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": ",".join(a["ip"] for a in status.get("podIPs") or []),
    }
    if path not in simple:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return simple[path]


def _resource_field(container: Object, source: Object) -> str:
    group, _, name = source["resource"].partition(".")
    quantity = ((container.get("resources") or {}).get(group) or {}).get(name, "0")
    value = parse_quantity(quantity) / parse_quantity(source.get("divisor", "1") or "1")
    return str(int(value.to_integral_value(rounding="ROUND_CEILING")))


def memory_limit_bytes(container: Object) -> int | None:
    """resources.limits.memory"""
    quantity = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return None if quantity is None else int(Decimal(parse_quantity(quantity)))
