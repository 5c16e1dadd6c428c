"""What AWS has of an environment, asked service by service: the only proof that something is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from environments.environment import Environment
from ops.aws.access import Aws, error_code
from ops.aws.stacks import stacks

TAG = "steadfast:environment"
GONE_STATES = frozenset({"terminated", "shutting-down", "deleted", "deleting", "DELETING"})

FEW = 6


@dataclass(frozen=True)
class Item:
    """One thing that exists."""

    kind: str
    id: str
    state: str = ""
    kept: bool = False
    """Meant to outlive the environment: the archive."""

    def __str__(self) -> str:
        return f"{self.kind} {self.id}" + (f" ({self.state})" if self.state else "")


Lister = Callable[[Aws], Iterator[Item]]


def _stacks(aws: Aws) -> Iterator[Item]:
    for found in stacks(aws):
        yield Item("stack", found.name, found.status, kept=found.kind == "archive")


def _clusters(aws: Aws) -> Iterator[Item]:
    client, name = aws.client("eks"), aws.environment.name
    try:
        state = client.describe_cluster(name=name)["cluster"]["status"]
    except ClientError as error:
        if error_code(error) != "ResourceNotFoundException":
            raise
        return
    yield Item("EKS cluster", name, state)
    for group in client.list_nodegroups(clusterName=name)["nodegroups"]:
        yield Item("node group", f"{name}/{group}")


def _file_systems(aws: Aws) -> Iterator[Item]:
    pages = aws.client("fsx").get_paginator("describe_file_systems").paginate()
    for found in (item for page in pages for item in page["FileSystems"]):
        if _tagged(aws, found.get("Tags", [])):
            yield Item("file system", found["FileSystemId"], found.get("Lifecycle", ""))


def _tagged(aws: Aws, tags: list[dict[str, str]]) -> bool:
    return any(tag["Key"] == TAG and tag["Value"] == aws.environment.name for tag in tags)


_EC2: tuple[tuple[str, str, str, str, str], ...] = (
    # kind, operation, key of the list, key of the id, key of the state
    ("VPC", "describe_vpcs", "Vpcs", "VpcId", ""),
    ("subnet", "describe_subnets", "Subnets", "SubnetId", ""),
    ("security group", "describe_security_groups", "SecurityGroups", "GroupId", ""),
    ("NAT gateway", "describe_nat_gateways", "NatGateways", "NatGatewayId", "State"),
    ("elastic address", "describe_addresses", "Addresses", "AllocationId", ""),
    ("network interface", "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId", "Status"),
    ("endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "State"),
    ("volume", "describe_volumes", "Volumes", "VolumeId", "State"),
    ("launch template", "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", ""),
)


def _ec2(aws: Aws) -> Iterator[Item]:
    client = aws.client("ec2")
    tag = {"Name": f"tag:{TAG}", "Values": [aws.environment.name]}
    vpcs = [found["VpcId"] for found in client.describe_vpcs(Filters=[tag])["Vpcs"]]
    for kind, operation, listed, identity, state in _EC2:
        for found in _all(client, operation, listed, tag, vpcs):
            if (status := str(found.get(state, ""))) not in GONE_STATES:
                yield Item(kind, found[identity], status)
    for reservation in client.describe_instances(Filters=[tag])["Reservations"]:
        for instance in reservation["Instances"]:
            if instance["State"]["Name"] not in GONE_STATES:
                yield Item("instance", instance["InstanceId"], instance["State"]["Name"])


def _all(client: Any, operation: str, listed: str, tag: dict[str, Any], vpcs: list[str]) -> list[dict[str, Any]]:
    """By tag, and what others put into our VPC by the VPC: those hold up its deletion just as well."""
    name = "Filter" if operation == "describe_nat_gateways" else "Filters"
    filters = [[tag]]
    if vpcs and listed in ("NetworkInterfaces", "VpcEndpoints", "SecurityGroups"):
        filters.append([{"Name": "vpc-id", "Values": vpcs}])
    found = [item for wanted in filters for item in getattr(client, operation)(**{name: wanted})[listed]]
    return [item for item in {str(sorted(item.items(), key=str)): item for item in found}.values()
            if item.get("GroupName") != "default"]  # fmt: skip


def _log_groups(aws: Aws) -> Iterator[Item]:
    name = aws.environment.name
    for found in (
        *_log_groups_of(aws, f"/aws/eks/{name}/"),
        *_log_groups_of(aws, f"/steadfast/{name}/"),
        *function_log_groups(aws),
    ):
        yield Item("log group", found)


def function_log_groups(aws: Aws) -> list[str]:
    """Log groups that the cluster stack's functions write to.

    A function that writes while its stack is deleted makes its group anew, outside CloudFormation. The name alone
    tells whose it is: `a-cluster-b-cluster-…` belongs to an environment `a-cluster-b`, not to `a`.
    """
    stack_prefix = f"/aws/lambda/{aws.environment.name}-cluster"
    found = _log_groups_of(aws, f"{stack_prefix}-")
    return [name for name in found if "-cluster-" not in name.removeprefix(stack_prefix)]


def _log_groups_of(aws: Aws, prefix: str) -> list[str]:
    pages = aws.client("logs").get_paginator("describe_log_groups").paginate(logGroupNamePrefix=prefix)
    return [group["logGroupName"] for page in pages for group in page["logGroups"]]


def _archive(aws: Aws) -> Iterator[Item]:
    try:
        aws.client("s3").head_bucket(Bucket=aws.bucket)
    except ClientError as error:
        if error_code(error) not in ("404", "NoSuchBucket"):
            raise
    else:
        yield Item("bucket", aws.bucket, kept=True)
    try:
        found = aws.client("ecr").describe_repositories(repositoryNames=[aws.environment.repository])
    except ClientError as error:
        if error_code(error) != "RepositoryNotFoundException":
            raise
        return
    for repository in found["repositories"]:
        yield Item("image repository", repository["repositoryName"], kept=True)


LISTERS: tuple[Lister, ...] = (_stacks, _clusters, _file_systems, _ec2, _log_groups, _archive)


def inventory(aws: Aws) -> list[Item]:
    """Everything found. Raises botocore's errors: what could not be asked is not gone."""
    return [item for lister in LISTERS for item in lister(aws)]


def left_over(items: list[Item], *, purged: bool) -> list[Item]:
    """What should not be there after a destroy."""
    return [item for item in items if purged or not item.kept]


def is_past_its_date(environment: Environment, items: list[Item]) -> bool:
    """Whether things are still there of an environment that has expired."""
    return bool(items and environment.expires and environment.expires < datetime.now(UTC).date())


def lines(items: list[Item]) -> list[str]:
    """For people: kinds with many things as a number, the rest one by one."""
    by_kind: dict[str, list[Item]] = {}
    for item in items:
        by_kind.setdefault(item.kind, []).append(item)
    return [
        line
        for kind, found in by_kind.items()
        for line in ([str(item) for item in found] if len(found) <= FEW else [f"{len(found)} times {kind}"])
    ]


def as_dicts(items: list[Item]) -> list[dict[str, Any]]:
    """For --json."""
    return [asdict(item) for item in items]
