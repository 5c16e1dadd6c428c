"""Reading Kubernetes objects: selectors, conditions, owners, timestamps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


def timestamp(at_s: float | None = None) -> str:
    """RFC 3339 with microseconds: Kubernetes keeps whole seconds, too coarse for scaled delays."""
    moment = datetime.fromtimestamp(time.time() if at_s is None else at_s, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 timestamp."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def name_of(obj: Object) -> str:
    """metadata.name"""
    return str(obj["metadata"]["name"])


def namespace_of(obj: Object) -> str | None:
    """metadata.namespace, None for cluster-wide objects."""
    return obj["metadata"].get("namespace")


def uid_of(obj: Object) -> str:
    """metadata.uid"""
    return str(obj["metadata"]["uid"])


def labels_of(obj: Object) -> dict[str, str]:
    """metadata.labels, read-only."""
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Object) -> dict[str, str]:
    """metadata.annotations, read-only."""
    return obj["metadata"].get("annotations") or {}


def is_terminating(obj: Object) -> bool:
    """A deletion was asked for and has not ended."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def finalizers_of(obj: Object) -> list[str]:
    """metadata.finalizers, read-only."""
    return obj["metadata"].get("finalizers") or []


def add_finalizer(obj: Object, finalizer: str) -> None:
    """Adds once."""
    present = obj["metadata"].setdefault("finalizers", [])
    if finalizer not in present:
        present.append(finalizer)


def drop_finalizer(obj: Object, finalizer: str) -> None:
    """Removes it, and the list with the last one."""
    rest = [f for f in finalizers_of(obj) if f != finalizer]
    if rest:
        obj["metadata"]["finalizers"] = rest
    else:
        obj["metadata"].pop("finalizers", None)


def controller_of(obj: Object) -> Object | None:
    """The ownerReference with `controller: true`."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((o for o in owners if o.get("controller")), None)


def owner_reference(owner: Object) -> Object:
    """A controlling, blocking ownerReference to `owner`."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def phase_of(pod: Object) -> str:
    """status.phase"""
    return str(pod.get("status", {}).get("phase", "Pending"))


def is_finished_pod(pod: Object) -> bool:
    """Succeeded or Failed."""
    return phase_of(pod) in ("Succeeded", "Failed")


def condition(obj: Object, kind: str) -> Object | None:
    """The condition of that type, or None."""
    return next((c for c in obj.get("status", {}).get("conditions") or [] if c["type"] == kind), None)


def condition_is(obj: Object, kind: str, status: str = "True") -> bool:
    """The condition exists with that status."""
    found = condition(obj, kind)
    return found is not None and found["status"] == status


def set_condition(obj: Object, kind: str, status: str, reason: str = "", message: str | None = None) -> bool:
    """Sets a condition in place; the transition time moves only with the status. True if something changed."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    new: Object = {"type": kind, "status": status, "lastTransitionTime": timestamp()}
    if reason:
        new["reason"] = reason
    if message is not None:
        new["message"] = message
    for i, old in enumerate(conditions):
        if old["type"] != kind:
            continue
        if all(old.get(k) == new.get(k) for k in ("status", "reason", "message")):
            return False
        if old["status"] == status:
            new["lastTransitionTime"] = old["lastTransitionTime"]
        conditions[i] = new
        return True
    conditions.append(new)
    return True


def matches_labels(selector: dict[str, str], labels: dict[str, str]) -> bool:
    """Equality-based selection."""
    return all(labels.get(k) == v for k, v in selector.items())


def matches_expressions(expressions: Iterable[Object], labels: dict[str, str]) -> bool:
    """Set-based selection: In, NotIn, Exists, DoesNotExist, Gt, Lt."""
    return all(_matches_expression(e, labels) for e in expressions)


def _matches_expression(expression: Object, labels: dict[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    value = labels.get(key)
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    raise ValueError(f"unknown selector operator {operator!r}")


def matches_selector(selector: Object | None, labels: dict[str, str]) -> bool:
    """A LabelSelector; None selects nothing, {} everything."""
    if selector is None:
        return False
    return matches_labels(selector.get("matchLabels") or {}, labels) and matches_expressions(
        selector.get("matchExpressions") or [], labels
    )


def tolerates(tolerations: list[Object], taint: Object) -> Object | None:
    """The toleration that tolerates the taint, or None."""
    return next((t for t in tolerations if _tolerates(t, taint)), None)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")
