"""One cluster for a module's Jobs, each in a namespace of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.testing import Scenario, plain_nodes, running_cluster

SCALE = 0.05


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that no test breaks."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "shared", time_scale=SCALE) as running:
        yield running


@pytest.fixture
def scenario(cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Scenario:
    """A namespace and a Job named after the test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")[:50].strip("-")
    return Scenario(cluster, name, tmp_path / "orders", SCALE)


@pytest.fixture
def own_nodes(cluster: LocalCluster, scenario: Scenario) -> Iterator[dict[str, dict[str, str]]]:
    """Three nodes that the test may break; returns the pod fields that choose them."""
    labels = {"scenario": scenario.namespace}
    nodes = plain_nodes(3, prefix=scenario.namespace, labels=labels)
    for spec in nodes:
        cluster.add_node(spec)
    yield {"nodeSelector": labels}
    present = {n.metadata.name for n in scenario.core.list_node().items}
    for spec in nodes:
        if spec.name in present:
            cluster.remove_node(spec.name)
