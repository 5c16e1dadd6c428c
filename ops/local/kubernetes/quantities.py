"""Resource requests against what nodes have."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from ops.local.kubernetes.objects import Object

Amounts = dict[str, Decimal]


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
