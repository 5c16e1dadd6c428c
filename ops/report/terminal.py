"""The report as tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ops.report.rows import (
    Row,
    bucket_rows,
    checkpoint_rows,
    fault_header,
    fault_rows,
    total_rows,
    unstruck_header,
    unstruck_rows,
)
from ops.report.summary import Summary


def print_summary(console: Console, summary: Summary) -> None:
    """Faults first, then totals, saves and buckets."""
    if summary.faults:
        console.print(_table("Faults (seconds after each struck)", fault_header(), fault_rows(summary)))
    if summary.not_struck:
        console.print(_table("Planned faults that did not strike", unstruck_header(), unstruck_rows(summary)))
    console.print(_table(f"Run {summary.run}", None, total_rows(summary)))
    console.print(_table("Checkpoints", None, checkpoint_rows(summary)))
    console.print(_table("Where the time went", None, bucket_rows(summary)))


def print_rows(console: Console, title: str, header: Row, rows: list[Row]) -> None:
    """Any table."""
    console.print(_table(title, header, rows))


def _table(title: str, header: Row | None, rows: list[Row]) -> Table:
    table = Table(
        title=escape(title), title_justify="left", show_header=header is not None, box=None, padding=(0, 2, 0, 0)
    )
    for name in header or [""] * len(rows[0] if rows else ()):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
