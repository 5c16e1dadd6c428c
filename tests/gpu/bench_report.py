"""What the benchmark of saves measures, and the table that it makes of it."""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from trainer.events import read_ledger
from trainer.paths import RunPaths

T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Student's t, two-sided, by number of values."""


@dataclass
class Window:
    """Some steps of one arm."""

    repeat: int
    steps_s: list[float]
    saves_at: list[int]
    """Which of the steps launched a save."""
    in_flight: list[bool]
    """By step: whether a save was under way at its end."""

    @property
    def step_s(self) -> float:
        """Mean, whatever happened."""
        return statistics.mean(self.steps_s)


@dataclass
class Measured:
    """What was measured of a way of saving. Each window is a run of its own, opened, saved once, then measured."""

    name: str
    first_step: int = 0
    """The step of a run's first save, which is measured apart."""
    runs: list[RunPaths] = field(default_factory=list)
    firsts: list[Window] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
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


def summary(arm: Measured, control: list[Window]) -> dict[str, Any]:
    """One row of the table."""
    t_ref = statistics.median([s for w in control for s in w.steps_s])
    snapshots, prepared = arm.events("snapshot"), arm.events("prepared")
    # the control arm takes the same fingerprints at the same steps
    usual_s = statistics.median([cost for w in control for cost in costs(w, t_ref)])
    beside = [s for w in arm.windows for s in _away_from_saves(w)]
    undisturbed_s = statistics.mean(s for w in control for s in _away_from_saves(w))
    efficiencies = [_control_step_s(control, w.repeat) / w.step_s for w in arm.windows]
    return {
        "arm": arm.name,
        "windows": len(arm.windows),
        "saves": sum(len(w.saves_at) for w in arm.windows),
        "efficiency": statistics.mean(efficiencies),
        "efficiency_low": _lower(efficiencies),
        "efficiency_each": efficiencies,
        "blocked_s": _quantiles([e["blocked_s"] for e in snapshots if e["step"] > arm.first_step]),
        "blocked_first_s": [e["blocked_s"] for e in snapshots if e["step"] == arm.first_step],
        "step_excess_s": _quantiles([cost - usual_s for w in arm.windows for cost in costs(w, t_ref)]),
        "step_excess_first_s": [cost - usual_s for w in arm.firsts for cost in costs(w, t_ref)],
        "fingerprint_s": usual_s,
        "slowdown_while_writing": statistics.mean(beside) / undisturbed_s - 1 if beside else None,
        "steps_while_writing": len(beside),
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
    }


def costs(window: Window, t_ref: float) -> Iterator[float]:
    """What a save took from its own step and the next."""
    for at in window.saves_at:
        yield sum(step - t_ref for step in window.steps_s[at : at + 2])


def _control_step_s(control: list[Window], repeat: int) -> float:
    """Of the control windows around."""
    return statistics.mean(w.step_s for w in control if w.repeat == repeat)


def _away_from_saves(window: Window) -> Iterator[float]:
    """Steps but for those that launched a save and the next; of an arm, only those beside a save under way."""
    near = {at + d for at in window.saves_at for d in (0, 1)}
    for n, step_s in enumerate(window.steps_s):
        if n not in near and (not window.in_flight or window.in_flight[n]):
            yield step_s


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


def _lower(values: list[float]) -> float | None:
    """Lower end of the 95 % interval of the mean (Student)."""
    if len(values) < 2:
        return None
    half = T_95.get(len(values), 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    columns = ["arm", "E", "95 % low", "blocked p50/p99/max ms", "first ms", "lost by both steps p50 ms"]
    columns += ["slower", "commit s", "drain s", "host GB", "GPU GB", "equal"]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        blocked = "/".join(f"{s * 1e3:.1f}" for name, s in (row["blocked_s"] or {}).items() if name != "n")
        low = f"{row['efficiency_low']:.2%}" if row["efficiency_low"] else "–"
        slower = f"{row['slowdown_while_writing']:+.2%}" if row["slowdown_while_writing"] is not None else "–"
        commit = f"{row['commit_s']['p50']:.2f}" if row["commit_s"] else "–"
        cells = [
            row["arm"],
            f"{row['efficiency']:.2%}",
            low,
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
