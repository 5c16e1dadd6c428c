"""The report's tables as text, the same for the terminal and the page."""

from __future__ import annotations

from ops.report.summary import Summary

Row = tuple[str, ...]


def seconds(value: float | None) -> str:
    """`-` for what was not reached."""
    if value is None:
        return "-"
    return f"{value:.3f} s" if abs(value) < 1 else f"{value:.2f} s"


def percent(value: float | None) -> str:
    """A share between 0 and 1."""
    return "-" if value is None else f"{100 * value:.1f} %"


def size(value: int | None) -> str:
    """Bytes, readable."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def fault_header() -> Row:
    """Column names of `fault_rows`."""
    return (
        "fault",
        "class",
        "rank",
        "step",
        "layer",
        "detected",
        "restarted",
        "first good step",
        "lost steps",
        "",
    )


def fault_rows(summary: Summary) -> list[Row]:
    """One row per fault: seconds after it struck."""
    return [
        (
            fault.id,
            fault.class_,
            str(fault.rank),
            str(fault.step),
            fault.layer or "-",
            seconds(fault.detect_s),
            seconds(_since_fault(fault.t, 4)),
            seconds(fault.recovery_s),
            str(fault.lost_steps),
            "recovered" if fault.recovered else "NOT RECOVERED",
        )
        for fault in summary.faults
    ]


def unstruck_header() -> Row:
    """Column names of `unstruck_rows`."""
    return ("fault", "class", "rank", "step", "phase", "why")


def unstruck_rows(summary: Summary) -> list[Row]:
    """One row per fault that was planned and did not strike."""
    return [
        (fault.id, fault.class_, str(fault.rank), str(fault.step), fault.phase, fault.why or "not known")
        for fault in summary.not_struck
    ]


def _since_fault(t: list[float | None], mark: int) -> float | None:
    begin, end = t[0], t[mark]
    return None if begin is None or end is None else end - begin


def total_rows(summary: Summary) -> list[Row]:
    """The run in a few lines."""
    steps, t_ref = summary.steps, summary.t_ref
    loss = "-" if summary.final_loss is None else f"{summary.final_loss:.6f}"
    reference = "none: no control run"
    if t_ref:
        reference = f"{seconds(t_ref.median_s)}, spread {seconds(t_ref.spread_s)}, n = {t_ref.n}"
    return [
        ("steps", f"{steps.done} of {steps.target}, {steps.lost} lost"),
        ("attempts", str(summary.attempts)),
        ("ranks", str(summary.world_size)),
        ("wall time", seconds(summary.wall_s)),
        ("step time of the control run", reference),
        ("goodput", percent(summary.goodput)),
        ("final loss", loss),
        ("parameters, sha256", summary.params_sha256 or "-"),
    ]


def checkpoint_rows(summary: Summary) -> list[Row]:
    """What saves cost."""
    figures = summary.checkpoint
    stall = figures.stall_s
    blocked = "-"
    if stall:
        parts = {"p50": stall.p50, "p99": stall.p99, "max": stall.max, "first": stall.first}
        blocked = ", ".join(f"{name} {seconds(value)}" for name, value in parts.items())
    saves = f"{figures.saves} committed, {figures.skipped} skipped, {figures.failed} failed"
    return [
        ("writer, stage", f"{figures.writer or '-'}, {figures.stage or '-'}"),
        ("saves", f"{saves}, one every {seconds(summary.interval_s)}"),
        ("bytes a generation", size(figures.bytes)),
        ("blocked a save", blocked),
        ("launch to commit", seconds(figures.commit_s)),
        ("preparation", seconds(figures.prepare_s)),
        ("drain at the end", seconds(figures.drain_s)),
        ("memory a rank", f"host {size(figures.host_bytes)}, device {size(figures.device_bytes)}"),
        ("efficiency", f"{percent(figures.efficiency)}; stalls only {percent(figures.efficiency_stall_only)}"),
        ("oldest newest generation at a fault", seconds(figures.rpo_s)),
    ]


def bucket_rows(summary: Summary) -> list[Row]:
    """Buckets that hold time, the largest first, and their sum."""
    spent = sorted(((name, value) for name, value in summary.buckets_s.items() if value > 0), key=lambda i: -i[1])
    rows = [(name, seconds(value), percent(value / summary.wall_s)) for name, value in spent]
    total = sum(summary.buckets_s.values())
    return [*rows, ("sum", seconds(total), percent(total / summary.wall_s))]
