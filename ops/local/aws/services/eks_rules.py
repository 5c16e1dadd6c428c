"""What EKS refuses, in its own words."""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import ServiceException
from moto.iam.models import iam_backends

from ops.local.aws.cloudformation.state import ACCOUNT
from ops.local.aws.refusals import AwsError
from ops.local.aws.services import interfaces

VERSIONS = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")
NO_CONTROL_PLANE_ZONES = ("us-east-1e", "us-west-1b", "ca-central-1d")
ADDONS = frozenset(
    [
        "vpc-cni",
        "coredns",
        "kube-proxy",
        "eks-pod-identity-agent",
        "aws-ebs-csi-driver",
        "aws-efs-csi-driver",
        "aws-mountpoint-s3-csi-driver",
        "aws-fsx-csi-driver",
        "snapshot-controller",
        "eks-node-monitoring-agent",
        "amazon-cloudwatch-observability",
        "aws-network-flow-monitoring-agent",
        "aws-guardduty-agent",
        "adot",
        "metrics-server",
        "kube-state-metrics",
        "prometheus-node-exporter",
        "cert-manager",
        "external-dns",
        "fluent-bit",
        "aws-secrets-store-csi-driver-provider",
    ]
)
Document = dict[str, Any]


class InvalidParameterError(ServiceException):
    """A parameter that EKS does not take."""

    code = "InvalidParameterException"


class InvalidRequestError(ServiceException):
    """A request that does not fit the state."""

    code = "InvalidRequestException"


class InUseError(ServiceException):
    """Something of that name exists, or something hangs on it."""

    code = "ResourceInUseException"


class NotFoundError(ServiceException):
    """Nothing of that name."""

    code = "ResourceNotFoundException"


def check_role(arn: str) -> None:
    """EKS assumes the role while it makes a cluster or a node group."""
    roles = iam_backends[ACCOUNT]["aws"].roles.values()
    if not any(role.arn == arn for role in roles):
        raise InvalidParameterError(
            f"Role with arn: {arn}, could not be assumed because it does not exist or the trusted entity is not "
            "correct"
        )


def check_version(version: str) -> None:
    """Only versions in support."""
    if version not in VERSIONS:
        raise InvalidParameterError(f"unsupported Kubernetes version {version}")


def check_control_plane_zones(region: str, name: str, subnet_ids: list[str]) -> str:
    """Two zones at least, and only such as have control planes; gives the VPC."""
    backend = interfaces.ec2(region)
    found = [backend.get_subnet(subnet_id) for subnet_id in subnet_ids]
    zones = {subnet.availability_zone for subnet in found}
    if len(zones) < 2:
        raise InvalidParameterError("Subnets specified must be in at least two different AZs")
    for zone in sorted(zones):
        if zone in NO_CONTROL_PLANE_ZONES:
            raise AwsError(
                "UnsupportedAvailabilityZoneException",
                f"Cannot create cluster '{name}' because {zone}, the targeted availability zone, does not "
                "currently have sufficient capacity to support the cluster. Retry and choose from these "
                "availability zones: "
                f"{', '.join(z.name for z in backend.describe_availability_zones() if z.name != zone)}",
            )
    return str(found[0].vpc_id)


def check_nodegroup_template(asked: Document, data: Document) -> None:
    """A launch template and a node group's own settings exclude each other in places."""
    if asked.get("diskSize"):
        raise InvalidParameterError("Disk size must be specified within the launch template.")
    if asked.get("remoteAccess"):
        raise InvalidParameterError("Remote access configuration cannot be specified with a launch template.")
    if asked.get("instanceTypes") and data.get("InstanceType"):
        raise InvalidRequestError("Cannot specify instance types in launch template and API request")
    if data.get("IamInstanceProfile"):
        raise InvalidRequestError("Launch template should not specify an instance profile.")
    in_interfaces = [i for i in data.get("NetworkInterfaces", []) if i.get("SubnetId")]
    if in_interfaces:
        raise InvalidRequestError("Launch template network interfaces should not specify a subnet.")


def check_capacity_block(asked: Document, data: Document) -> None:
    """A Capacity Block needs its reservation in the launch template, and one zone."""
    if asked.get("capacityType") != "CAPACITY_BLOCK":
        return
    market = data.get("InstanceMarketOptions", {}).get("MarketType")
    target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    if market != "capacity-block" or not target.get("CapacityReservationId"):
        raise InvalidParameterError(
            "Launch template must specify MarketType capacity-block and a Capacity Reservation target "
            "for capacity type CAPACITY_BLOCK"
        )
    if len(asked["subnets"]) != 1:
        raise InvalidParameterError("Subnets must be in the Availability Zone of the Capacity Block")


def check_scaling(scaling: Document) -> None:
    """Minimum, desired and maximum in order."""
    low, want, high = (int(scaling.get(key, 0)) for key in ("minSize", "desiredSize", "maxSize"))
    if high < 1:
        raise InvalidParameterError("maxSize must be greater than 0")
    if not low <= want:
        raise InvalidParameterError(f"Minimum capacity {low} can't be greater than desired size {want}")
    if not want <= high:
        raise InvalidParameterError(f"desired capacity {want} can't be greater than max size {high}")
