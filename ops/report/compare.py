"""Runs beside one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ops.report.rows import Row, percent, seconds, size
from ops.report.summary import Summary

_FIGURES: dict[str, Callable[[Summary], str]] = {
    "ranks": lambda s: str(s.world_size),
    "steps": lambda s: f"{s.steps.done} of {s.steps.target}",
    "lost steps": lambda s: str(s.steps.lost),
    "attempts": lambda s: str(s.attempts),
    "wall time": lambda s: seconds(s.wall_s),
    "goodput": lambda s: percent(s.goodput),
    "writer": lambda s: s.checkpoint.writer or "-",
    "saves": lambda s: str(s.checkpoint.saves),
    "bytes a generation": lambda s: size(s.checkpoint.bytes),
    "blocked, p50": lambda s: seconds(s.checkpoint.stall_s.p50 if s.checkpoint.stall_s else None),
    "blocked, max": lambda s: seconds(s.checkpoint.stall_s.max if s.checkpoint.stall_s else None),
    "efficiency": lambda s: percent(s.checkpoint.efficiency),
    "faults recovered": lambda s: f"{sum(fault.recovered for fault in s.faults)} of {len(s.faults)}",
    "slowest recovery": lambda s: seconds(max((f.recovery_s or 0.0 for f in s.faults), default=None)),
    "final loss": lambda s: "-" if s.final_loss is None else f"{s.final_loss:.6f}",
    "parameters, sha256": lambda s: (s.params_sha256 or "-")[:16],
}


def comparison_rows(summaries: Sequence[Summary]) -> list[Row]:
    """One row per figure, one column per run."""
    return [(name, *(figure(summary) for summary in summaries)) for name, figure in _FIGURES.items()]


def same_result(summaries: Sequence[Summary]) -> bool:
    """All runs ended, with bit-equal parameters and loss."""
    results = {(summary.params_sha256, summary.final_loss) for summary in summaries}
    return len(results) == 1 and None not in next(iter(results))
