"""Our engine answers for CloudFormation."""

from __future__ import annotations

from ops.local.aws.cloudformation.api import CloudFormationApi
from ops.local.aws.services.routing import answer_with


def install() -> None:
    """Puts our API in moto's place."""
    answer_with("cloudformation", CloudFormationApi)
