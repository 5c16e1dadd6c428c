"""CloudTrail has no events here; the CLI asks for them after a failed deploy."""

from __future__ import annotations

from moto.cloudtrail.responses import CloudTrailResponse
from moto.core.responses import ActionResult

from ops.local.aws.services.mending import mend


def _lookup_events(_: CloudTrailResponse) -> ActionResult:
    return ActionResult({"Events": []})


def install() -> None:
    """Without an answer the CLI tries again for half a minute."""
    mend(CloudTrailResponse, "lookup_events", _lookup_events)
