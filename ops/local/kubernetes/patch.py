"""The three patches of the API: JSON merge, strategic merge, JSON patch.

https://kubernetes.io/docs/reference/using-api/api-concepts/#patch-and-apply
"""

from __future__ import annotations

from typing import Any

import jsonpatch

from ops.local.kubernetes.errors import ApiError, bad_request
from ops.local.kubernetes.objects import Object

# patchMergeKey of the lists we meet, from the API reference: the first key that all entries of a list carry.
_MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "ports": ("port", "containerPort"),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
    "taints": (),  # an atomic list, unlike what its name suggests
    "addresses": ("type",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
}
_SET_LISTS = {"finalizers"}


def apply_patch(obj: Object, body: Any, content_type: str) -> Object:
    """The patched object; `obj` may be changed on the way."""
    if content_type == "application/json-patch+json":
        return _json_patch(obj, body)
    if not isinstance(body, dict):
        raise bad_request("the patch must be an object")
    if content_type == "application/merge-patch+json":
        return _merge(obj, body)
    if content_type in ("application/strategic-merge-patch+json", "application/apply-patch+yaml"):
        return _strategic(obj, body)
    raise ApiError(
        415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}"
    )


def _json_patch(obj: Object, body: Any) -> Object:
    try:
        patched: Object = jsonpatch.apply_patch(obj, body)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise ApiError(
            422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
        ) from error
    return patched


def _merge(target: Object, patch: Object) -> Object:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            old = target.get(key)
            target[key] = _merge(old if isinstance(old, dict) else {}, value)
        else:
            target[key] = value
    return target


def _strategic(target: Object, patch: Object) -> Object:
    if patch.get("$patch") == "replace":
        return {k: v for k, v in patch.items() if k != "$patch"}
    for key, value in patch.items():
        if key.startswith("$"):
            _directive(target, key, value)
        elif value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            old = target.get(key)
            target[key] = _strategic(old if isinstance(old, dict) else {}, value)
        elif isinstance(value, list):
            target[key] = _merge_lists(key, target.get(key) or [], value)
        else:
            target[key] = value
    return target


def _directive(target: Object, key: str, value: Any) -> None:
    kind, _, field = key.partition("/")
    if kind == "$deleteFromPrimitiveList":
        target[field] = [x for x in target.get(field) or [] if x not in value]
    elif kind == "$retainKeys":
        for name in [k for k in target if k not in value]:
            del target[name]
    # $setElementOrder only orders what the merge has made; the order of the live list is kept instead.


def _merge_lists(field: str, old: list[Any], new: list[Any]) -> list[Any]:
    if field in _SET_LISTS:
        return old + [x for x in new if x not in old]
    merge_key = _merge_key(field, old, new)
    if merge_key is None:
        return [x for x in new if not (isinstance(x, dict) and "$patch" in x)]
    merged = list(old)
    for entry in new:
        _merge_entry(merged, entry, merge_key)
    return merged


def _merge_key(field: str, old: list[Any], new: list[Any]) -> str | None:
    entries = [*old, *new]
    for key in _MERGE_KEYS.get(field, ()):
        if all(isinstance(e, dict) and key in e for e in entries):
            return key
    return None


def _merge_entry(merged: list[Any], entry: Object, merge_key: str) -> None:
    index = next((i for i, e in enumerate(merged) if e.get(merge_key) == entry[merge_key]), None)
    if entry.get("$patch") == "delete":
        if index is not None:
            del merged[index]
    elif index is None:
        merged.append({k: v for k, v in entry.items() if k != "$patch"})
    else:
        merged[index] = _strategic(merged[index], entry)
