"""CloudTrail has no events here; the CLI asks for them after a failed deploy."""

from __future__ import annotations

from moto.cloudtrail.responses import CloudTrailResponse
from moto.core.responses import ActionResult


def _lookup_events(self: CloudTrailResponse) -> ActionResult:
    return ActionResult({"Events": []})


def install() -> None:
    """Without an answer the CLI tries again for half a minute."""
    CloudTrailResponse.lookup_events = _lookup_events
