"""A rank's imports: quick, and the collector works afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

PROGRAM = "import trainer.train, gc; print(gc.isenabled(), gc.get_freeze_count() > 100_000, gc.get_threshold())"


def test_imports_are_frozen_and_collection_is_on_again() -> None:
    shown = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert shown.stdout.split("(")[0].split() == ["True", "True"]
    assert "(700, 10, 10)" in shown.stdout
