"""Names and small habits that all constructs share."""

from __future__ import annotations

import ipaddress
from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct, IConstruct

from environments.environment import Environment


def pin(resource: IConstruct, logical_id: str) -> None:
    """Fix a resource's logical id: CloudFormation replaces whatever loses its id, and these hold state."""
    element = resource if isinstance(resource, cdk.CfnElement) else resource.node.default_child
    cast(cdk.CfnElement, element).override_logical_id(logical_id)


def log_group(scope: Construct, id: str, env: Environment, name: str) -> logs.LogGroup:
    """A log group of ours: made before whoever writes to it, gone with its stack, with the file's retention."""
    return logs.LogGroup(
        scope,
        id,
        log_group_name=name,
        retention=getattr(logs.RetentionDays, _RETENTION[env.logs.retention_days]),
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )


_RETENTION = {
    1: "ONE_DAY", 3: "THREE_DAYS", 5: "FIVE_DAYS", 7: "ONE_WEEK", 14: "TWO_WEEKS", 30: "ONE_MONTH",
    60: "TWO_MONTHS", 90: "THREE_MONTHS", 120: "FOUR_MONTHS", 150: "FIVE_MONTHS", 180: "SIX_MONTHS",
    365: "ONE_YEAR", 400: "THIRTEEN_MONTHS", 731: "TWO_YEARS",
}  # fmt: skip


def bucket_name(env: Environment) -> str:
    """The archive's bucket. A name, not a reference: the archive stack outlives whoever uses it."""
    return env.archive.bucket or f"{env.name}-archive-{cdk.Aws.ACCOUNT_ID}-{env.region}"


def subnet_masks(cidr: str) -> tuple[int, int]:
    """`(private, public)` prefix lengths: two private subnets of a quarter each, two small public ones."""
    prefix = ipaddress.ip_network(cidr).prefixlen
    return prefix + 2, min(prefix + 8, 28)


def node_role(scope: Construct, id: str, env: Environment) -> iam.Role:
    """What a node may do: join, and pull images. Everything else is Pod Identity's."""
    managed = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
    return iam.Role(
        scope,
        id,
        assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
        description=f"Nodes of environment {env.name}",
        managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name(name) for name in managed],
    )


def instance_tags(env: Environment, name: str) -> list[ec2.CfnLaunchTemplate.TagSpecificationProperty]:
    """A node group's tags do not reach its instances, disks and interfaces; the launch template's do."""
    tags = [cdk.CfnTag(key=key, value=value) for key, value in sorted({**env.all_tags, "Name": name}.items())]
    return [
        ec2.CfnLaunchTemplate.TagSpecificationProperty(resource_type=kind, tags=tags)
        for kind in ("instance", "volume", "network-interface")
    ]
