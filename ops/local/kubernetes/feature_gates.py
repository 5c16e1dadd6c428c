"""What differs between the Kubernetes versions that the local one stands in for: the gates that EKS leaves alone.

https://kubernetes.io/docs/reference/command-line-tools-reference/feature-gates/
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Gate(Enum):
    """A feature gate whose default has changed, by its Kubernetes name."""

    MUTABLE_POD_RESOURCES_FOR_SUSPENDED_JOBS = "MutablePodResourcesForSuspendedJobs"
    """A suspended Job takes new container resources (kubernetes#132441)."""
    MUTABLE_SCHEDULING_DIRECTIVES_FOR_SUSPENDED_JOBS = "MutableSchedulingDirectivesForSuspendedJobs"
    """So does a Job that has run, with new scheduling directives; it loses its startTime (kubernetes#135104)."""


Gates = frozenset[Gate]

_ON_FROM: Final[dict[Gate, tuple[int, int]]] = {
    Gate.MUTABLE_POD_RESOURCES_FOR_SUSPENDED_JOBS: (1, 36),  # alpha, and off, in 1.35
    Gate.MUTABLE_SCHEDULING_DIRECTIVES_FOR_SUSPENDED_JOBS: (1, 36),  # alpha, and off, in 1.35
}


def gates_of(kubernetes_version: str) -> Gates:
    """The gates that are on by default in a version (`1.35`)."""
    major, minor = kubernetes_version.split(".")[:2]
    return frozenset(gate for gate, since in _ON_FROM.items() if (int(major), int(minor)) >= since)
