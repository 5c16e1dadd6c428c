"""What FSx for Lustre refuses, in its own words."""

from __future__ import annotations

from typing import Any

from moto.core.exceptions import ServiceException

from ops.local.aws.refusals import AwsError
from ops.local.aws.services import interfaces, quotas

Document = dict[str, Any]
THROUGHPUTS: dict[str, dict[str, tuple[int, ...]]] = {
    "PERSISTENT_1": {"SSD": (50, 100, 200), "HDD": (12, 40)},
    "PERSISTENT_2": {"SSD": (125, 250, 500, 1000)},
}
# GiB of one object server by throughput: an EFA-enabled file system grows by these.
EFA_STEP_GIB = {125: 38_400, 250: 19_200, 500: 9_600, 1000: 4_800}
HDD_STEP_GIB = {12: 6_000, 40: 1_800}
# one network interface for each object storage server
SERVER_GIB = 2_400
LNET_PORTS = (988, *range(1018, 1024))


class BadRequestError(ServiceException):
    """A request that FSx does not take."""

    code = "BadRequest"


def check_creation(region: str, asked: Document, existing: list[Document]) -> None:
    """Everything that FSx checks before it starts a Lustre file system."""
    lustre = asked.get("LustreConfiguration") or {}
    if asked["FileSystemType"] != "LUSTRE":
        raise BadRequestError(f"This emulator makes LUSTRE file systems only, not {asked['FileSystemType']}.")
    if len(asked["SubnetIds"]) != 1:
        raise BadRequestError("Exactly 1 subnet IDs are required for LUSTRE file systems.")
    deployment = lustre.get("DeploymentType", "SCRATCH_1")
    _check_capacity(deployment, asked, lustre)
    _check_throughput(deployment, asked, lustre)
    _check_metadata(deployment, lustre)
    _check_efa(deployment, asked, lustre)
    _check_quota(existing, asked)
    _check_security_groups(region, asked, lustre)


def _check_capacity(deployment: str, asked: Document, lustre: Document) -> None:
    if asked.get("StorageType") == "INTELLIGENT_TIERING":
        return
    capacity = int(asked.get("StorageCapacity") or 0)
    step, besides = _capacities(deployment, asked, lustre)
    if capacity not in besides and (capacity <= 0 or capacity % step):
        first = f"{', '.join(map(str, besides))} or " if besides else ""
        raise BadRequestError(
            f"Invalid Lustre FS storage capacity: {capacity}. Must be {first}a multiple of {step}."
        )


def _capacities(deployment: str, asked: Document, lustre: Document) -> tuple[int, tuple[int, ...]]:
    """GiB by which a file system grows, and what it may have besides (StorageCapacity of CreateFileSystem)."""
    if deployment == "SCRATCH_1":
        return 3_600, (1_200, 2_400)
    if deployment == "PERSISTENT_1" and asked.get("StorageType") == "HDD":
        return HDD_STEP_GIB.get(int(lustre.get("PerUnitStorageThroughput") or 0), 6_000), ()
    return 2_400, (1_200,)


def _check_throughput(deployment: str, asked: Document, lustre: Document) -> None:
    allowed = THROUGHPUTS.get(deployment, {}).get(asked.get("StorageType") or "SSD")
    throughput = lustre.get("PerUnitStorageThroughput")
    if deployment in THROUGHPUTS and allowed and int(throughput or 0) not in allowed:
        raise BadRequestError(
            "Invalid Lustre deployment configuration: the provided throughput is invalid or does not meet the "
            "storage capacity requirement"
        )
    if deployment not in ("SCRATCH_1", "SCRATCH_2", *THROUGHPUTS):
        raise BadRequestError(f"Invalid Lustre deployment type: {deployment}")
    if deployment == "PERSISTENT_2" and (lustre.get("ImportPath") or lustre.get("ExportPath")):
        raise BadRequestError("ImportPath and ExportPath are not supported for PERSISTENT_2 file systems.")


def _check_metadata(deployment: str, lustre: Document) -> None:
    metadata = lustre.get("MetadataConfiguration")
    if metadata and deployment != "PERSISTENT_2":
        raise BadRequestError("MetadataConfiguration is only supported for PERSISTENT_2 file systems.")
    if metadata and metadata.get("Mode") == "USER_PROVISIONED":
        iops = int(metadata.get("Iops") or 0)
        if iops not in (1500, 3000, 6000) and (iops <= 0 or iops % 12000 or iops > 192000):
            raise BadRequestError(f"Invalid metadata IOPS: {iops}.")


def _check_efa(deployment: str, asked: Document, lustre: Document) -> None:
    if not lustre.get("EfaEnabled"):
        return
    if deployment != "PERSISTENT_2" or not lustre.get("MetadataConfiguration"):
        raise BadRequestError("EFA is only supported for PERSISTENT_2 filesystems with metadata configuration")
    step = EFA_STEP_GIB.get(int(lustre.get("PerUnitStorageThroughput") or 0))
    if step and int(asked["StorageCapacity"]) % step:
        raise BadRequestError(
            f"Invalid Lustre FS storage capacity: {asked['StorageCapacity']}. "
            f"EFA-enabled file systems with this throughput must be a multiple of {step}."
        )


def _check_quota(existing: list[Document], asked: Document) -> None:
    used = sum(int(d.get("StorageCapacity") or 0) for d in existing)
    if len(existing) >= quotas.limit("lustre_file_systems"):
        raise AwsError(
            "ServiceLimitExceeded", "Your account has reached the limit for the number of file systems."
        )
    if used + int(asked.get("StorageCapacity") or 0) > quotas.limit("lustre_storage_gib"):
        raise AwsError("ServiceLimitExceeded", "Your account has reached the limit for storage capacity.")


def _check_security_groups(region: str, asked: Document, lustre: Document) -> None:
    backend = interfaces.ec2(region)
    subnet = backend.get_subnet(asked["SubnetIds"][0])
    groups = [backend.get_security_group_from_id(g) for g in asked.get("SecurityGroupIds") or []]
    if any(group is None or group.vpc_id != subnet.vpc_id for group in groups):
        raise AwsError(
            "InvalidNetworkSettings",
            "One or more security groups do not exist or are not in the file system's VPC.",
        )
    if groups and not any(_lets_lnet_in(group) for group in groups):
        raise AwsError(
            "InvalidNetworkSettings",
            "The file system cannot be created because the default security group in the subnet provided or the "
            "provided security groups do not permit Lustre LNET network traffic on port 988",
        )
    if groups and lustre.get("EfaEnabled") and not any(_all_to_itself(group) for group in groups):
        raise AwsError(
            "InvalidNetworkSettings",
            "Insufficient security group permissions to create an EFA-enabled file system. Update the security "
            "group to allow all inbound and outbound traffic to and from the security group itself.",
        )


def _lets_lnet_in(group: Any) -> bool:
    """Port 988 and 1018 to 1023, from the group itself."""
    return all(
        any(_names(rule, group.id) and _opens(rule, port) for rule in group.ingress_rules) for port in LNET_PORTS
    )


def _all_to_itself(group: Any) -> bool:
    return all(
        any(_names(rule, group.id) and str(rule.ip_protocol) == "-1" for rule in rules)
        for rules in (group.ingress_rules, group.egress_rules)
    )


def _names(rule: Any, group_id: str) -> bool:
    source = rule.source_group
    return isinstance(source, dict) and source.get("GroupId") == group_id


def _opens(rule: Any, port: int) -> bool:
    if str(rule.ip_protocol) == "-1":
        return True
    return str(rule.ip_protocol) in ("tcp", "6") and int(rule.from_port) <= port <= int(rule.to_port)


def check_association(existing: list[Document], asked: Document) -> None:
    """At most eight, and no path inside another's."""
    if len(existing) >= 8:
        raise AwsError(
            "ServiceLimitExceeded", "The maximum number of data repository associations (8) has been reached."
        )
    for other in existing:
        for key in ("FileSystemPath", "DataRepositoryPath"):
            mine, theirs = (str(d.get(key, "")).rstrip("/") + "/" for d in (asked, other))
            if mine.startswith(theirs) or theirs.startswith(mine):
                raise BadRequestError(
                    f"{key} {asked[key]} overlaps with {other[key]} of {other['AssociationId']}."
                )


def servers(asked: Document) -> int:
    """How many object servers, and so interfaces, a file system has."""
    lustre = asked.get("LustreConfiguration") or {}
    throughput = int(lustre.get("PerUnitStorageThroughput") or 0)
    step = EFA_STEP_GIB.get(throughput, SERVER_GIB) if lustre.get("EfaEnabled") else SERVER_GIB
    return max(1, int(asked.get("StorageCapacity") or 0) // step)
