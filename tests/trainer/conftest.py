"""A run directory of its own for a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """Made, and empty."""
    paths = RunPaths(tmp_path / "run")
    paths.make()
    return paths
