"""Log groups of ours: made before whoever writes to them, gone with their stack, kept as long as the file says."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from environments.environment import Environment

_RETENTION = {
    1: "ONE_DAY", 3: "THREE_DAYS", 5: "FIVE_DAYS", 7: "ONE_WEEK", 14: "TWO_WEEKS", 30: "ONE_MONTH",
    60: "TWO_MONTHS", 90: "THREE_MONTHS", 120: "FOUR_MONTHS", 150: "FIVE_MONTHS", 180: "SIX_MONTHS",
    365: "ONE_YEAR", 400: "THIRTEEN_MONTHS", 731: "TWO_YEARS",
}  # fmt: skip


def log_group(scope: Construct, id: str, env: Environment, name: str) -> logs.LogGroup:
    """A log group. One that a service makes by itself has no end and outlives everything."""
    return logs.LogGroup(
        scope,
        id,
        log_group_name=name,
        retention=getattr(logs.RetentionDays, _RETENTION[env.logs.retention_days]),
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )


def control_plane_logs(env: Environment) -> str:
    """Where EKS writes; the name is EKS's."""
    return f"/aws/eks/{env.name}/cluster"


def flow_logs(env: Environment) -> str:
    """Rejected traffic of the VPC."""
    return f"/steadfast/{env.name}/flow-log"


def build_logs(env: Environment) -> str:
    """The image build's."""
    return f"/steadfast/{env.name}/image-build"
