"""A campaign's figures: k of n, recovery and lost steps by class, void cells and their reasons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from ops.campaign import Records, Shown
from ops.campaign_plan import CampaignPlan, Void
from ops.report.terminal import print_rows
from trainer.faults.schema import FaultClass

HEADER = ("class", "recovered", "by", "detected p50", "recovery p50", "p90", "max", "lost steps p50", "p90", "max")
NOTHING = "-"


def shown_faults(records: Records) -> list[Shown]:
    """Every fault of every run that has ended."""
    return [fault for run in records.runs.values() for fault in run.faults]


def class_rows(faults: Sequence[Shown]) -> list[tuple[str, ...]]:
    """One row a class, in the order of the classes."""
    rows = []
    for class_ in FaultClass:
        of = [shown for shown in faults if shown.fault.class_ is class_]
        if of:
            rows.append(_row(class_, of))
    return rows


def _row(class_: FaultClass, of: Sequence[Shown]) -> tuple[str, ...]:
    good = [shown.figures for shown in of if shown.recovered and shown.figures]
    layers = Counter(figures.layer or NOTHING for figures in good)
    recovery = [figures.recovery_s for figures in good if figures.recovery_s is not None]
    lost = [float(figures.lost_steps) for figures in good]
    detected = [figures.detect_s for figures in good if figures.detect_s is not None]
    return (
        class_.value,
        f"{len(good)}/{len(of)}",
        ", ".join(f"{layer} {count}" for layer, count in layers.most_common()),
        _seconds(detected, 0.5),
        *(_seconds(recovery, quantile) for quantile in (0.5, 0.9, 1.0)),
        *(_count(lost, quantile) for quantile in (0.5, 0.9, 1.0)),
    )


def quantile_of(values: Sequence[float], quantile: float) -> float:
    """By nearest rank: a value that was measured. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(quantile * len(values)) - 1)]


def _seconds(values: Sequence[float], quantile: float) -> str:
    return f"{quantile_of(values, quantile):.1f} s" if values else NOTHING


def _count(values: Sequence[float], quantile: float) -> str:
    return f"{quantile_of(values, quantile):.0f}" if values else NOTHING


def void_rows(voids: Sequence[Void]) -> list[tuple[str, ...]]:
    """Class, its phases without a fault, and the reason they share."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for void in voids:
        grouped.setdefault((void.class_.value, void.reason), []).append(void.when.value)
    return [(class_, ", ".join(whens), reason) for (class_, reason), whens in grouped.items()]


def problem_rows(faults: Sequence[Shown]) -> list[tuple[str, ...]]:
    """What does not count as recovered."""
    return [
        (shown.run, shown.fault.id, f"{shown.when.value}, rank {shown.fault.rank}", shown.problem)
        for shown in faults
        if not shown.recovered
    ]


def show(console: Console, records: Records, plan: CampaignPlan) -> None:
    """The tables on a terminal."""
    faults = shown_faults(records)
    print_rows(console, "Faults (seconds after each struck)", HEADER, class_rows(faults))
    if voids := void_rows(plan.voids):
        print_rows(console, "Void", ("class", "phases", "why"), voids)
    if problems := problem_rows(faults):
        print_rows(console, "Not recovered", ("run", "fault", "where", "why"), problems)
    console.print(verdict(faults), markup=False)


def verdict(faults: Sequence[Shown]) -> str:
    """One line."""
    good = sum(fault.recovered for fault in faults)
    return f"{good}/{len(faults)} faults recovered with the undisturbed run's parameters"


def markdown(records: Records, plan: CampaignPlan) -> str:
    """The same for a page of docs/results."""
    faults = shown_faults(records)
    versions = ", ".join(f"{name} {version}" for name, version in sorted(records.versions.items()))
    parts = [
        f"Machine: {records.machine}. Versions: {versions}.",
        f"{verdict(faults)}, in {len(records.runs)} of {len(plan.runs)} runs.",
        _markdown(HEADER, class_rows(faults)),
    ]
    if voids := void_rows(plan.voids):
        parts += ["Void cells:", _markdown(("class", "phases", "why"), voids)]
    if problems := problem_rows(faults):
        parts += ["Not recovered:", _markdown(("run", "fault", "where", "why"), problems)]
    return "\n\n".join(parts) + "\n"


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
