"""S3: moto reads deny statements without their conditions."""

from __future__ import annotations

import json
from typing import Any

from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.s3.models import FakeBucket

from ops.local.aws.services.mending import mend

# moto would deny everything that a statement denies to plain HTTP, or to other accounts only.
NOT_JUDGED = ("aws:SecureTransport", "aws:PrincipalAccount", "aws:ResourceAccount", "s3:TlsVersion")


def _get_permission(self: Any, action: str, resource: str) -> Any:
    if self.policy is None:
        return PermissionResult.NEUTRAL
    document = json.loads(self.policy)
    statements = document["Statement"]
    listed = statements if isinstance(statements, list) else [statements]
    document["Statement"] = [
        statement
        for statement in listed
        if not any(key in json.dumps(statement.get("Condition", {})) for key in NOT_JUDGED)
    ]
    return IAMPolicy(json.dumps(document)).is_action_permitted(action, resource)


def install() -> None:
    """The loopback endpoint counts as TLS; without this the CDK's own assets are refused."""
    mend(FakeBucket, "get_permission", _get_permission)
