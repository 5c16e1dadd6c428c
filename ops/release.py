"""Giving up a lost node. A force delete does not free its pods' indexes; the out-of-service taint does."""

from __future__ import annotations

from typing import Any

from ops.cluster import is_ready
from ops.errors import InvalidInputError, RefusedError
from ops.world import World

TAINT = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}


def release_node(world: World, name: str) -> None:
    """Terminate the instance first, or its processes may still write, then taint the node.

    Raises InvalidInputError when there is no such node, and RefusedError when the node answers and nobody
    confirmed.
    """
    node = world.cluster.node(name)
    if node is None:
        known = ", ".join(item.metadata.name for item in world.cluster.gpu_nodes()) or "none"
        raise InvalidInputError(f"there is no node {name}", details=[f"GPU nodes: {known}"])
    if is_ready(node) and not world.call.output.yes:
        raise RefusedError(f"{name} is ready: releasing it ends what runs there", fix="--yes if that is meant")
    world.call.output.confirm(f"Terminate the instance of {name} and free its pods' indexes?")
    if world.call.local:
        from ops.local.kubernetes.cluster import LocalCluster

        LocalCluster(world.call.state).kill_node(name)
    else:
        from ops.aws.instances import terminate

        terminate(world.call, node.spec.provider_id)
    taint(world, node)


def taint(world: World, node: Any) -> None:
    """Kubernetes' own word for an instance that is really gone."""
    present = [{"key": item.key, "value": item.value, "effect": item.effect} for item in node.spec.taints or []]
    if not any(item["key"] == TAINT["key"] for item in present):
        world.cluster.patch_node(node.metadata.name, {"spec": {"taints": [*present, TAINT]}})
