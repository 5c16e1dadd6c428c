"""A cluster of processes for the tests that need one, and a simulated one for each test of a controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.testing import running_cluster
from tests.support.simulated_cluster import Scenario


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes that no test breaks."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "shared") as running:
        yield running


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Scenario:
    """The real controllers on a clock of their own; a parameter is their Kubernetes version."""
    return Scenario(tmp_path, monkeypatch, getattr(request, "param", "1.35"))
