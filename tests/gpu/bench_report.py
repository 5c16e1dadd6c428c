"""What the benchmark of saves measures, and the table that it makes of it."""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from trainer.events import read_ledger
from trainer.paths import RunPaths

T_95 = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11)
"""Student's t, two-sided, by degrees of freedom from 1; the last for all that follow."""
NEAR_STEPS = 2
"""The step that launches a save and the one after it: what the save holds up directly."""


@dataclass
class Steps:
    """Seconds by step, and whether a save was under way at its end."""

    steps_s: list[float]
    in_flight: list[bool]

    def part(self, at: int, count: int) -> Steps:
        """Some of them."""
        return Steps(self.steps_s[at : at + count], self.in_flight[at : at + count])

    def those(self, in_flight: bool) -> list[float]:
        """But for the first two: steps that launch a save, take a fingerprint, or follow one that does."""
        flags = zip(self.steps_s[NEAR_STEPS:], self.in_flight[NEAR_STEPS:], strict=True)
        return [step_s for step_s, flag in flags if flag is in_flight]

    @property
    def late_s(self) -> list[float]:
        """While a save of the interval before is under way."""
        return [step_s for step_s, flag in zip(self.steps_s, self.in_flight, strict=True) if flag]


@dataclass
class Cycle:
    """An interval that begins with a save, and its neighbours without: what drifts evenly weighs nothing."""

    before: Steps
    saved: Steps
    after: Steps

    @property
    def quiet_s(self) -> list[float]:
        """Steps that no save disturbs, and no fingerprint."""
        return self.before.those(False) + self.after.those(False)

    @property
    def beside_s(self) -> list[float]:
        """Steps while the save is under way, but for those that it holds up directly."""
        return self.saved.those(True)

    def control_s(self, otherwise_s: float) -> float:
        """An undisturbed step's: the mean of both neighbours."""
        quiet = [steps for steps in (self.before.those(False), self.after.those(False)) if steps]
        return statistics.mean(map(statistics.mean, quiet)) if quiet else otherwise_s

    def excess_s(self) -> float:
        """What the save took from its own step and the next; the fingerprint is taken in all three."""
        saved_s, before_s, after_s = (sum(s.steps_s[:NEAR_STEPS]) for s in (self.saved, self.before, self.after))
        return saved_s - (before_s + after_s) / 2

    def efficiency(self, otherwise_s: float) -> float:
        """Of an interval with its save and all that it does in the background, however long that takes."""
        control_s = self.control_s(otherwise_s)
        without_s = [sum(s.steps_s) - sum(s.late_s) + len(s.late_s) * control_s for s in (self.before, self.after)]
        late_s = sum(self.after.late_s) - len(self.after.late_s) * control_s
        return statistics.mean(without_s) / (sum(self.saved.steps_s) + late_s)


def cycles(window: Steps, interval: int) -> list[Cycle]:
    """Intervals without and with a save in turn, the first and the last without."""
    at = range(interval, len(window.steps_s) - interval, 2 * interval)
    return [Cycle(*(window.part(begin + n * interval, interval) for n in (-1, 0, 1))) for begin in at]


@dataclass
class Measured:
    """What was measured of a way of saving. Each window is a run of its own, opened, saved once, then measured."""

    name: str
    first_step: int = 0
    """The step of a run's first save, which is measured apart."""
    runs: list[RunPaths] = field(default_factory=list)
    windows: list[Steps] = field(default_factory=list)
    compared: int = 0
    different: list[str] = field(default_factory=list)
    open_s: list[float] = field(default_factory=list)
    drain_s: list[float] = field(default_factory=list)
    device_bytes: int = 0
    host_bytes: int = 0
    """Of memory in use at the ends of steps, what came with the first saves, their files left out."""

    def events(self, name: str) -> list[Mapping[str, Any]]:
        """Of all ranks and windows."""
        return [record for paths in self.runs for record in read_ledger(paths.events) if record["event"] == name]


def summary(arm: Measured, interval: int, t_ref: float) -> dict[str, Any]:
    """One row of the table. `t_ref` is for arms that are never quiet."""
    snapshots, prepared = arm.events("snapshot"), arm.events("prepared")
    repeats = [cycles(window, interval) for window in arm.windows]
    measured = [cycle for repeat in repeats for cycle in repeat]
    efficiencies = [cycle.efficiency(t_ref) for cycle in measured]
    slower = [statistics.mean(c.beside_s) / c.control_s(t_ref) - 1 for c in measured if c.beside_s]
    return {
        "arm": arm.name,
        "windows": len(arm.windows),
        "saves": len(measured),
        "control_step_s": [[cycle.control_s(t_ref) for cycle in repeat] for repeat in repeats],
        "quiet_steps": sum(len(cycle.quiet_s) for cycle in measured),
        "efficiency": statistics.mean(efficiencies),
        "efficiency_95": _interval(efficiencies),
        "efficiency_median": statistics.median(efficiencies),
        "efficiency_median_95": _median_interval(efficiencies),
        "efficiency_each": efficiencies,
        "blocked_s": _quantiles([e["blocked_s"] for e in snapshots if e["step"] > arm.first_step]),
        "blocked_first_s": [e["blocked_s"] for e in snapshots if e["step"] == arm.first_step],
        "step_excess_s": _quantiles([cycle.excess_s() for cycle in measured]),
        "slowdown_while_writing": statistics.mean(slower) if slower else None,
        "slowdown_95": _interval(slower),
        "slowdown_each": slower,
        "commit_s": _quantiles([e["commit_s"] for e in arm.events("committed") if e["step"] > arm.first_step]),
        "commit_first_s": [e["commit_s"] for e in arm.events("committed") if e["step"] == arm.first_step],
        "write_s": _quantiles([e["write_s"] + e["fsync_s"] for e in arm.events("rank_written")]),
        "drain_s": statistics.median(arm.drain_s),
        "open_s": arm.open_s,
        "prepare_s": [e["duration_s"] for e in prepared],
        "host_bytes": max((e["host_bytes"] for e in prepared), default=arm.host_bytes),
        "device_bytes": max([arm.device_bytes, *(e["device_bytes"] for e in prepared)]),
        "loaded_and_equal": f"{arm.compared - len({d.split(':')[0] for d in arm.different})}/{arm.compared}",
        "different": arm.different,
        "failed": [e["error"] for e in arm.events("save_failed")],
        "steps_us": [[round(step_s * 1e6) for step_s in window.steps_s] for window in arm.windows],
    }


def _quantiles(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)],
        "max": ordered[-1],
        "n": len(ordered),
    }


def _interval(values: list[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean (Student)."""
    if len(values) < 2:
        return None
    half = T_95[min(len(values) - 1, len(T_95)) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.mean(values)
    return mean - half, mean + half


def _median_interval(values: list[float]) -> tuple[float, float] | None:
    """The 95 % interval of the median, whatever the distribution: from order statistics (the sign test).

    A burst of slow steps that the machine has, in an interval with a save or in a neighbour, spoils the mean.
    """
    ordered, n = sorted(values), len(values)
    outside = [k for k in range(n) if 2 * sum(math.comb(n, i) for i in range(k + 1)) <= 0.05 * 2**n]
    return (ordered[outside[-1]], ordered[-outside[-1] - 1]) if outside else None


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    columns = [
        "arm",
        "E",
        "95 % low",
        "E median",
        "95 % low",
        "blocked p50/p99/max ms",
        "first ms",
        "lost by both steps p50 ms",
    ]
    columns += ["slower", "commit s", "drain s", "host GB", "GPU GB", "equal"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        blocked = "/".join(f"{s * 1e3:.1f}" for name, s in (row["blocked_s"] or {}).items() if name != "n")
        low, low_median = (
            f"{row[name][0]:.2%}" if row[name] else "–" for name in ("efficiency_95", "efficiency_median_95")
        )
        slower = f"{row['slowdown_while_writing']:+.2%}" if row["slowdown_while_writing"] is not None else "–"
        commit = f"{row['commit_s']['p50']:.2f}" if row["commit_s"] else "–"
        cells = [
            row["arm"],
            f"{row['efficiency']:.2%}",
            low,
            f"{row['efficiency_median']:.2%}",
            low_median,
            blocked,
            f"{max(row['blocked_first_s'], default=math.nan) * 1e3:.1f}",
            f"{row['step_excess_s']['p50'] * 1e3:.1f}",
            slower,
            commit,
            f"{row['drain_s']:.2f}",
            f"{row['host_bytes'] / 1e9:.2f}",
            f"{row['device_bytes'] / 1e9:.2f}",
            row["loaded_and_equal"],
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def versions(device: torch.device, work: Path) -> dict[str, Any]:
    """Machine, storage and software."""
    cuda = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "nvidia-resiliency-ext": version("nvidia-resiliency-ext"),
        "kernel": platform.release(),
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader") if cuda else None,
        "cpus": os.cpu_count(),
        "storage": _output("df", "-T", str(work)),
    }


def in_memory(path: Path) -> bool:
    """Whether a directory lies in a memory file system."""
    return " tmpfs " in (_output("df", "-T", str(path)) or "")


def _output(*command: str) -> str | None:
    """The last line that a command prints."""
    if shutil.which(command[0]) is None:
        return None
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return lines[-1] if lines else None
