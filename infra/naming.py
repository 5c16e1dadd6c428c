"""Names and small habits that all constructs share."""

from __future__ import annotations

import functools
import ipaddress
from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct, IConstruct

from environments.environment import Environment


def pin(resource: IConstruct, logical_id: str) -> None:
    """Fix a resource's logical id: CloudFormation replaces whatever loses its id, and these hold state."""
    element = resource if isinstance(resource, cdk.CfnElement) else resource.node.default_child
    cast(cdk.CfnElement, element).override_logical_id(logical_id)


def accept(scope: IConstruct, reason: str, *rules: str) -> None:
    """Accept cdk-nag's AwsSolutions rules for a construct and what is in it, with the reason beside it."""
    cdk.Validations.of(scope).acknowledge(
        *(cdk.Acknowledgment(id=f"AwsSolutions::AwsSolutions-{rule}", reason=reason) for rule in rules)
    )


# Values and policies that belong to no stack; each costs a call to CDK's Node process, so it is asked for once.
@functools.cache
def partition() -> str:
    """`AWS::Partition`."""
    return cdk.Aws.PARTITION


@functools.cache
def account_id() -> str:
    """`AWS::AccountId`."""
    return cdk.Aws.ACCOUNT_ID


@functools.cache
def managed_policy(name: str) -> iam.IManagedPolicy:
    """A policy that AWS manages."""
    return iam.ManagedPolicy.from_aws_managed_policy_name(name)


@functools.cache
def service_principal(name: str) -> iam.ServicePrincipal:
    """A service of AWS as a principal."""
    return iam.ServicePrincipal(f"{name}.amazonaws.com")


def managed(policy: str) -> str:
    """cdk-nag's name for the use of an AWS managed policy."""
    return f"IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{policy}]"


def arn(env: Environment, service: str, resource: str) -> str:
    """An ARN in the environment's region and account."""
    return f"arn:{partition()}:{service}:{env.region}:{account_id()}:{resource}"


def bucket_name(env: Environment) -> str:
    """The archive's bucket. A name, not a reference: the archive stack outlives whoever uses it."""
    return env.archive.bucket or f"{env.name}-archive-{account_id()}-{env.region}"


def subnet_masks(cidr: str) -> tuple[int, int]:
    """`(private, public)` prefix lengths: two private subnets of a quarter each, two small public ones."""
    prefix = ipaddress.ip_network(cidr).prefixlen
    return prefix + 2, min(prefix + 8, 28)


def node_role(scope: Construct, id: str, env: Environment) -> iam.Role:
    """What a node may do: join, and pull images. Everything else is Pod Identity's."""
    policies = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
    role = iam.Role(
        scope,
        id,
        assumed_by=service_principal("ec2"),
        description=f"Nodes of environment {env.name}",
        managed_policies=[managed_policy(name) for name in policies],
    )
    accept(role, "EKS demands these two of a node, and AWS keeps them", *map(managed, policies))
    return role


def instance_tags(env: Environment, name: str) -> list[ec2.CfnLaunchTemplate.TagSpecificationProperty]:
    """A node group's tags do not reach its instances, disks and interfaces; the launch template's do."""
    tags = [cdk.CfnTag(key=key, value=value) for key, value in sorted({**env.all_tags, "Name": name}.items())]
    return [
        ec2.CfnLaunchTemplate.TagSpecificationProperty(resource_type=kind, tags=tags)
        for kind in ("instance", "volume", "network-interface")
    ]


def encrypted_root(size_gib: int) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """The root disk of AL2023 nodes."""
    types = ec2.CfnLaunchTemplate
    disk = types.EbsProperty(volume_size=size_gib, volume_type="gp3", encrypted=True, delete_on_termination=True)
    return types.BlockDeviceMappingProperty(device_name="/dev/xvda", ebs=disk)
