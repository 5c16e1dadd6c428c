"""Where pods may run: taints of our node groups and the one list of tolerations for all DaemonSets."""

from __future__ import annotations

from typing import Any

from k8s.names import POOL_GPU, POOL_LABEL, POOL_SYSTEM, ZONE_LABEL

GPU_TAINT: dict[str, str] = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}
"""infra puts it on the GPU nodes. A value, since `=true` and `=present` differ: k8s-device-plugin#1934."""

GPU_TOLERATION: dict[str, str] = {
    "key": GPU_TAINT["key"],
    "operator": "Equal",
    "value": GPU_TAINT["value"],
    "effect": GPU_TAINT["effect"],
}
DAEMON_TOLERATIONS: list[dict[str, Any]] = [
    GPU_TOLERATION,
    {"key": "CriticalAddonsOnly", "operator": "Exists"},
    # A node that has lost its way keeps its plug-ins, or it never gets back what they advertise.
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
]
"""Every DaemonSet on GPU nodes tolerates all of these: aws-efa-eks#3, nvcf#1349, nebari#3074."""

DEAD_NODE_TOLERATION_S = 30
"""Kubernetes gives 300 s by default before it takes a pod from a node that stopped answering."""


def node_loss_tolerations() -> list[dict[str, Any]]:
    """Leave a dead node after 30 s: a pod that waits longer keeps its index."""
    return [
        {
            "key": f"node.kubernetes.io/{condition}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": DEAD_NODE_TOLERATION_S,
        }
        for condition in ("not-ready", "unreachable")
    ]


def on_gpu_nodes() -> dict[str, Any]:
    """Pod fields for training pods."""
    return {"nodeSelector": {POOL_LABEL: POOL_GPU}, "tolerations": [GPU_TOLERATION, *node_loss_tolerations()]}


def on_system_nodes(availability_zone: str) -> dict[str, Any]:
    """Pod fields for pods without a GPU that mount the file system, hence in its zone."""
    return {
        "nodeSelector": {POOL_LABEL: POOL_SYSTEM, ZONE_LABEL: availability_zone},
        "tolerations": node_loss_tolerations(),
    }
