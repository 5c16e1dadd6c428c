"""report.html: one plain page that needs nothing beside itself."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from importlib import resources

from jinja2 import Environment as Templates
from jinja2 import StrictUndefined

from ops.report.rows import (
    bucket_rows,
    checkpoint_rows,
    fault_header,
    fault_rows,
    total_rows,
    unstruck_header,
    unstruck_rows,
)
from ops.report.summary import Summary

_CAPTIONS = {
    "loss": "Loss by step. Lines of several attempts lie on one another where steps were done again.",
    "step_time": "Step time of the slowest rank, with saves and faults.",
    "recoveries": "What each recovery consisted of.",
    "buckets": "Where the wall time went.",
}


def render_page(summary: Summary, plots: Mapping[str, bytes]) -> str:
    """The page, pictures included."""
    template = (resources.files("ops.report") / "report.html").read_text()
    page = Templates(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    images = [
        (_CAPTIONS[name], "data:image/png;base64," + base64.b64encode(image).decode())
        for name, image in plots.items()
    ]
    return page.from_string(template).render(
        summary=summary,
        totals=total_rows(summary),
        checkpoint=checkpoint_rows(summary),
        buckets=bucket_rows(summary),
        fault_header=fault_header(),
        faults=fault_rows(summary),
        unstruck_header=unstruck_header(),
        unstruck=unstruck_rows(summary),
        images=images,
    )
