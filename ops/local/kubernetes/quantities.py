"""Resource requests against what nodes have."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from ops.local.kubernetes.objects import Object

Amounts = dict[str, Decimal]
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def parse_quantity(text: str | int | float) -> Decimal:
    """`500m`, `1.5Gi`, `2e3` → a number, bytes for memory. Not the client's: importing that doubles a start.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(text))
    if match is None or (match[2] not in _DECIMAL and match[2] not in _BINARY):
        raise ValueError(f"not a quantity: {text!r}")
    number, unit = Decimal(match[1]), match[2]
    return number * (Decimal(1024) ** _BINARY[unit] if unit in _BINARY else Decimal(10) ** _DECIMAL[unit])


def amounts(resources: dict[str, str] | None) -> Amounts:
    """`{"cpu": "500m"}` → numbers; memory in bytes."""
    return {name: parse_quantity(value) for name, value in (resources or {}).items()}


def pod_requests(pod: Object) -> Amounts:
    """What the scheduler reserves: the sum of the containers, or the largest init container if that is more."""
    total: Amounts = {"pods": Decimal(1)}
    for container in pod["spec"].get("containers", []):
        for name, value in _requests(container).items():
            total[name] = total.get(name, Decimal(0)) + value
    for container in pod["spec"].get("initContainers") or []:
        for name, value in _requests(container).items():
            total[name] = max(total.get(name, Decimal(0)), value)
    return total


def _requests(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return amounts(resources.get("limits")) | amounts(resources.get("requests"))


def remaining(allocatable: dict[str, str], pods: Iterable[Object]) -> Amounts:
    """What is left on a node."""
    left = amounts(allocatable)
    left.setdefault("pods", Decimal(110))
    for pod in pods:
        for name, value in pod_requests(pod).items():
            left[name] = left.get(name, Decimal(0)) - value
    return left


def lacking(left: Amounts, requests: Amounts) -> list[str]:
    """Names of the resources that do not suffice."""
    return sorted(n for n, v in requests.items() if v > 0 and left.get(n, Decimal(0)) < v)
