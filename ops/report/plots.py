"""The report's pictures, as PNG. One function per picture; matplotlib without pyplot, so without global state."""

from __future__ import annotations

import io
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ops.report.ledger import Ledger
from ops.report.steps import JobStep, job_steps
from ops.report.summary import Summary
from trainer.events import Event

BLUE, ORANGE, RED, GREEN, GREY = "#2f6db3", "#e08a1e", "#c0392b", "#3c8d4f", "#8a8f98"
_PHASES = (
    ("detection", RED),
    ("stop", ORANGE),
    ("rendezvous, build", GREY),
    ("load", BLUE),
    ("first step", GREEN),
    ("to new ground", "#b9d8c0"),
)


def draw_plots(ledger: Ledger, summary: Summary) -> dict[str, bytes]:
    """PNG by name; a picture that would be empty is left out."""
    steps = job_steps(ledger)
    plots: dict[str, bytes] = {}
    if steps:
        plots["loss"] = _png(lambda axes: _loss(axes, ledger, steps))
        plots["step_time"] = _png(lambda axes: _step_time(axes, ledger, steps, summary))
    if any(fault.t[5] is not None for fault in summary.faults):
        plots["recoveries"] = _png(lambda axes: _recoveries(axes, summary), rows=len(summary.faults))
    plots["buckets"] = _png(lambda axes: _buckets(axes, summary), rows=len(_spent(summary)))
    return plots


def _png(draw: Callable[[Axes], None], rows: int | None = None) -> bytes:
    figure = Figure(figsize=(9, 3.2 if rows is None else 1.3 + 0.34 * rows), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    draw(axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _loss(axes: Axes, ledger: Ledger, steps: list[JobStep]) -> None:
    for attempt in sorted({step.attempt for step in steps}):
        points = [(s.step, s.loss) for s in steps if s.attempt == attempt and s.loss is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], lw=1.2, label=f"attempt {attempt}")
    held_out = {int(r.fields["step"]): r.number("loss") for r in ledger.of_event(Event.EVALUATION)}
    if held_out:
        axes.plot(list(held_out), list(held_out.values()), "o", color=RED, ms=4, label="held out")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend(frameon=False, fontsize=8, ncols=3)


def _step_time(axes: Axes, ledger: Ledger, steps: list[JobStep], summary: Summary) -> None:
    begin = ledger.begin
    axes.plot(
        [s.end - begin for s in steps], [s.end - s.begin for s in steps], ".", ms=3, color=BLUE, label="step"
    )
    saves = [record.t - record.number("commit_s") - begin for record in ledger.of_event(Event.COMMITTED)]
    _lines(axes, saves, GREEN, "save")
    _lines(axes, [fault.t[0] for fault in summary.faults if fault.t[0] is not None], RED, "fault")
    if summary.t_ref:
        axes.axhline(summary.t_ref.median_s, color=GREY, lw=1, ls="--", label="control run")
    axes.set(xlabel="seconds since the run's begin", ylabel="step time, s")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, ncols=4)


def _lines(axes: Axes, at: list[float], color: str, label: str) -> None:
    for number, x in enumerate(at):
        axes.axvline(x, color=color, lw=1, alpha=0.7, label=label if number == 0 else None)


def _recoveries(axes: Axes, summary: Summary) -> None:
    """Each bar starts when the fault struck; a mark that was not passed has no piece."""
    for row, fault in enumerate(summary.faults):
        t0 = at = fault.t[0] or 0.0
        for (_, color), end in zip(_PHASES, fault.t[1:], strict=True):
            if end is not None:
                axes.barh(row, end - at, left=at - t0, color=color, height=0.6)
                at = end
    axes.set_yticks(range(len(summary.faults)), [f"{f.id} ({f.class_})" for f in summary.faults], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds after the fault")
    handles = [axes.barh(0, 0, color=color) for _, color in _PHASES]
    names = [name for name, _ in _PHASES]
    axes.legend(handles, names, frameon=False, fontsize=8, ncols=6, loc="lower left", bbox_to_anchor=(0, 1))


def _spent(summary: Summary) -> list[tuple[str, float]]:
    spent = [(name, seconds) for name, seconds in summary.buckets_s.items() if seconds > 0]
    return sorted(spent, key=lambda item: -item[1])


def _buckets(axes: Axes, summary: Summary) -> None:
    spent = _spent(summary)
    bars = axes.barh(range(len(spent)), [seconds for _, seconds in spent], color=BLUE, height=0.65)
    axes.set_yticks(range(len(spent)), [name for name, _ in spent], fontsize=8)
    shares = [f"{seconds:.2f} s, {100 * seconds / summary.wall_s:.1f} %" for _, seconds in spent]
    axes.bar_label(bars, labels=shares, padding=3, fontsize=8)
    axes.margins(x=0.2)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
