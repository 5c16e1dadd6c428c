"""Versions stand in one file, and fit each other."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from environments.versions import KUBECTL, KUBERNETES, addon_versions

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r"""["':]v?\d+\.\d+\.\d+[\w.-]*["']""")


def minor(version: str) -> int:
    return int(version.split(".")[1])


def test_the_layers_kubectl_covers_every_version() -> None:
    assert all(abs(minor(version) - minor(KUBECTL)) <= 1 for version in KUBERNETES)
    module = f"lambda_layer_kubectl_v{minor(KUBECTL)}"
    assert find_spec(f"aws_cdk.{module}")
    assert f"aws_cdk.{module} import" in (ROOT / "infra" / "cluster.py").read_text(encoding="utf-8")


def test_every_version_has_every_add_on() -> None:
    names = {version: set(addon_versions(version)) for version in KUBERNETES}
    assert set(map(frozenset, names.values())) == {frozenset(names[KUBECTL])}
    for version in KUBERNETES:
        assert addon_versions(version)["kube-proxy"].startswith(f"v{version}.")


@pytest.mark.parametrize("folder", ["infra", "k8s"])
def test_no_version_stands_anywhere_else(folder: str) -> None:
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((ROOT / folder).glob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if PINNED.search(line)
    ]
    assert found == []
