"""Service quotas: AWS's defaults, but for GPU instances, whose quota every user of them has raised."""

from __future__ import annotations

from dataclasses import dataclass

from ops.local.aws.settings import LIVE


@dataclass(frozen=True)
class Quota:
    """One quota: the key in the settings, Service Quotas' names, and its value."""

    key: str
    service: str
    code: str
    name: str
    value: int


# https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html and the Service Quotas console
QUOTAS = (
    Quota("vpcs", "vpc", "L-F678F1CE", "VPCs per Region", 5),
    Quota("nat_gateways_per_zone", "vpc", "L-FE5A380F", "NAT gateways per Availability Zone", 5),
    Quota("elastic_ips", "ec2", "L-0263D0A3", "EC2-VPC Elastic IPs", 5),
    Quota("p_vcpus", "ec2", "L-417A185B", "Running On-Demand P instances", 1920),
    Quota("g_vcpus", "ec2", "L-DB2E81BA", "Running On-Demand G and VT instances", 768),
    Quota("standard_vcpus", "ec2", "L-1216C47A", "Running On-Demand Standard instances", 640),
    Quota("clusters", "eks", "L-1194D53C", "Clusters", 100),
    Quota("lustre_file_systems", "fsx", "L-54C0CFDF", "Lustre Persistent_2 file systems", 100),
    Quota("lustre_storage_gib", "fsx", "L-EA8B9B43", "Lustre Persistent_2 storage capacity", 504_000),
)


def limit(key: str) -> int:
    """The quota's value, as the settings have it."""
    default = next(quota.value for quota in QUOTAS if quota.key == key)
    return LIVE.current.quotas.get(key, default)
