"""For tests of whatever runs on the local cluster: a cluster that ends with the test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.nodes import NodeSpec
from ops.local.node.substitutions import Substitutions

_PROJECT = Path(__file__).parents[3]


def plain_nodes(count: int, *, prefix: str = "node", labels: dict[str, str] | None = None) -> list[NodeSpec]:
    """Untainted nodes with room for many small pods."""
    room = {"cpu": "1000", "memory": "1000Gi"}
    return [NodeSpec(f"{prefix}-{i}", labels or {}, (), room) for i in range(count)]


@contextmanager
def running_cluster(
    state_dir: Path,
    *,
    nodes: Sequence[NodeSpec] | None = None,
    time_scale: float = 0.05,
    network: str | None = None,
    kubernetes_version: str = "1.35",
) -> Iterator[LocalCluster]:
    """A cluster of three plain nodes, or of `nodes`, that ends with the block, whatever happens in it."""
    cluster = LocalCluster(state_dir)
    substitutions = Substitutions(state_dir / "fsx", _PROJECT, network=network)
    try:
        cluster.start(plain_nodes(3) if nodes is None else nodes, kubernetes_version, substitutions, time_scale)
        yield cluster
    finally:
        cluster.stop()
