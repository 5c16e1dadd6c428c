"""A run directory, read for its report, and the report's files in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ops.files import write_atomically
from ops.report.ledger import Ledger
from ops.report.reference import ReferenceTime, reference_time
from ops.report.summary import RunInfo, Summary, summarize
from trainer.events import read_ledger
from trainer.paths import RunPaths


class NoSuchRunError(Exception):
    """There is no run directory, or it is not one."""


@dataclass(frozen=True)
class Run:
    """What a report is made from."""

    paths: RunPaths
    info: RunInfo
    ledger: Ledger

    def summary(self) -> Summary:
        """Raises EmptyLedgerError."""
        return summarize(self.ledger, self.info)


def load_run(root: Path) -> Run:
    """Read run.json and the ledger under `root`. Raises NoSuchRunError naming what is missing."""
    paths = RunPaths(root)
    return Run(paths, load_info(paths), Ledger.of(read_ledger(paths.events)))


def load_info(paths: RunPaths) -> RunInfo:
    """What the report needs of run.json. Raises NoSuchRunError."""
    try:
        raw: dict[str, Any] = json.loads(paths.run_json.read_text())
        return RunInfo(
            run=raw.get("run", paths.root.name),
            target_step=raw["config"]["loop"]["steps"],
            versions={name: str(version) for name, version in (raw.get("versions") or {}).items()},
            storage=raw.get("storage") or file_system_type(paths.root),
            t_ref=raw.get("t_ref"),
            faults=raw.get("faults") or [],
        )
    except FileNotFoundError:
        raise NoSuchRunError(f"{paths.root}: there is no run.json, so this is not a run directory") from None
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
        raise NoSuchRunError(f"{paths.run_json}: damaged: {error!r}") from None


def write_report(run: Run) -> Summary:
    """Write summary.json, the plots and report.html into the run directory."""
    from ops.report.page import render_page
    from ops.report.plots import draw_plots  # matplotlib takes a second to import

    summary = run.summary()
    plots = draw_plots(run.ledger, summary)
    for name, image in plots.items():
        write_atomically(run.paths.report / f"{name}.png", image)
    write_atomically(run.paths.report / "report.html", render_page(summary, plots))
    write_atomically(run.paths.report / "summary.json", summary.to_json())
    return summary


def control_reference(root: Path) -> ReferenceTime | None:
    """The reference step time that the undisturbed run at `root` gives. Raises NoSuchRunError."""
    return reference_time(load_run(root).ledger)


def file_system_type(path: Path) -> str | None:
    """Of the mount that holds `path`, such as `ext4` or `lustre`."""
    best: tuple[str, str | None] = ("", None)
    try:
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, kind, *_ = line.split()
            if path.resolve().is_relative_to(mount) and len(mount) >= len(best[0]):
                best = (mount, kind)
    except OSError:
        return None
    return best[1]
