"""Runs and where their directories can be read from: this machine's file system, or the archive's bucket."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ops.files import write_atomically
from trainer.paths import RunPaths


class RunStore(Protocol):
    """Run directories of one environment."""

    def names(self) -> list[str]:
        """Runs that have a directory."""

    def run_json(self, run: str) -> dict[str, Any] | None:
        """What run.json holds; None when there is none, or it cannot be read."""

    def write_run_json(self, run: str, content: Mapping[str, Any]) -> None:
        """Before the first pod, and at each resumption."""

    def progress(self, run: str) -> tuple[int, bool]:
        """Newest committed step, and whether the target was reached."""

    def fetch(self, run: str) -> Path:
        """A directory with run.json, ledger and small files, and generations where they are at hand."""


@dataclass(frozen=True)
class LocalRuns:
    """The shared file system as a folder of this machine."""

    root: Path

    def names(self) -> list[str]:
        """Runs that have a directory."""
        return sorted(path.parent.name for path in self.root.glob("*/run.json"))

    def run_json(self, run: str) -> dict[str, Any] | None:
        """What run.json holds."""
        try:
            content: dict[str, Any] = json.loads(RunPaths(self.root / run).run_json.read_text())
        except (OSError, ValueError):
            return None
        return content

    def write_run_json(self, run: str, content: Mapping[str, Any]) -> None:
        """As a whole; readable by whoever reads the run directory."""
        write_atomically(RunPaths(self.root / run).run_json, json.dumps(content, indent=2) + "\n")

    def progress(self, run: str) -> tuple[int, bool]:
        """Newest committed step, and whether the target was reached."""
        paths = RunPaths(self.root / run)
        try:
            step = int(paths.progress.read_text())
        except (OSError, ValueError):
            step = 0
        return step, paths.completion.exists()

    def fetch(self, run: str) -> Path:
        """The run directory itself."""
        return self.root / run


def keep_report(run_root: Path, reports: Path) -> Path:
    """Copy a run's report to where destroying the environment leaves it; returns the folder."""
    reports.mkdir(parents=True, exist_ok=True)
    for path in RunPaths(run_root).report.iterdir():
        if not path.name.startswith("."):
            shutil.copyfile(path, reports / path.name)
    return reports
