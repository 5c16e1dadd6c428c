"""Findings of CDK's validator and of cdk-nag that we know and accept, each with its reason."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import IConstruct

ACKNOWLEDGED: dict[str, str] = {
    "CloudFormation-Validate::W3010": "The zone is the environment file's, since a reservation pins it.",
    "Annotation::@aws-cdk/aws-eks:isolatedSubnetsForKubectlPrivateSubnets": (
        "Without NAT there is an endpoint for everything that it lists (environments.rules.network)."
    ),
}


def acknowledge(scope: IConstruct) -> None:
    """Tell the validators what we accept."""
    for id, reason in ACKNOWLEDGED.items():
        cdk.Validations.of(scope).acknowledge(cdk.Acknowledgment(id=id, reason=reason))
