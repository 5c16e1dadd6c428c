"""Where an environment is: region, zones, Kubernetes version, names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from environments.problems import Problem
from environments.sections import OnDemand
from environments.versions import KUBERNETES

if TYPE_CHECKING:
    from environments.environment import Environment

ZONE_UNKNOWN = "from-reservation"
"""An availability zone that `steadfast check --write` has still to fill in."""
ZONES_WITHOUT_EKS = ("use1-az3", "usw1-az2", "cac1-az3")
"""Zone ids where EKS makes no control plane (EKS guide, subnet requirements; eksctl#7870): `check` asks EC2."""
_SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PARTITIONS = {
    "cn": "aws-cn", "us-gov": "aws-us-gov", "us-iso": "aws-iso", "us-isob": "aws-iso-b", "us-isof": "aws-iso-f",
    "eu-isoe": "aws-iso-e",
}  # fmt: skip
"""By how a region's name begins; everything else is in `aws`."""
_COVERED = ("aws", "aws-us-gov")
_BUCKET_NAME_LIMIT = 63
_ACCOUNT_DIGITS = 12


def zone_is_in_region(env: Environment) -> Iterator[Problem]:
    """GPU nodes, file system and control pods share one zone of the region (eksctl#8208)."""
    if env.availability_zone != ZONE_UNKNOWN and env.availability_zone[:-1] != env.region:
        yield Problem(
            "availability_zone",
            f"{env.availability_zone} is not a zone of region {env.region}",
            f"one of {env.region}a, {env.region}b, …",
            "correct the zone, or the region",
            "eksctl#8208",
        )


def partition_of(region: str) -> str:
    """The partition that begins a region's ARNs."""
    return _PARTITIONS.get(region.rsplit("-", 2)[0], "aws")


def partition_is_covered(env: Environment) -> Iterator[Problem]:
    """Elsewhere registries and endpoints have other names than the ones that our templates write."""
    partition = partition_of(env.region)
    if partition not in _COVERED:
        yield Problem(
            "region",
            f"{env.region} is in the partition {partition}, where registries and endpoints have other names",
            f"a region of {' or '.join(_COVERED)}",
            "choose another region",
            "EKS guide, Amazon container image registries",
        )


def only_a_reservation_knows_its_zone(env: Environment) -> Iterator[Problem]:
    """On-demand capacity has no zone of its own that `check` could ask for."""
    if env.availability_zone == ZONE_UNKNOWN and isinstance(env.capacity, OnDemand):
        yield Problem(
            "availability_zone",
            "is from-reservation, but capacity.kind is on-demand: no reservation decides the zone",
            f"a zone of {env.region}",
            f"choose one, such as {env.region}a, or name a reservation under capacity",
            "eksctl#3816",
        )


def zone_is_filled_in(env: Environment) -> Iterator[Problem]:
    """The zone is asked for once and written down, never computed again."""
    if env.availability_zone == ZONE_UNKNOWN:
        yield Problem(
            "availability_zone",
            "is still from-reservation: templates need the zone itself",
            f"a zone of {env.region}",
            f"run `steadfast check {env.name} --write`, which asks EC2 for the reservation's zone",
            "eksctl#8208",
        )


def second_zone_is_another(env: Environment) -> Iterator[Problem]:
    """EKS wants two zones for its control plane."""
    second = env.network.second_availability_zone
    if second is None:
        return
    field, allowed = "network.second_availability_zone", f"a zone of {env.region} besides {env.availability_zone}"
    if second[:-1] != env.region:
        yield Problem(
            field,
            f"{second} is not a zone of region {env.region}",
            allowed,
            "correct it",
            "containers-roadmap#2204",
        )
    elif second == env.availability_zone:
        yield Problem(
            field, f"{second} is the first zone again: EKS wants two", allowed, "choose another", "eksctl#5107"
        )


def kubernetes_is_covered(env: Environment) -> Iterator[Problem]:
    """Add-ons and kubectl are pinned for these versions only (environments/versions.py)."""
    if env.kubernetes_version not in KUBERNETES:
        yield Problem(
            "kubernetes_version",
            f"{env.kubernetes_version} has no pinned add-ons here",
            f"one of {', '.join(KUBERNETES)}",
            "choose one, in quotes",
            "EKS add-on versions",
        )


def namespace_is_ours(env: Environment) -> Iterator[Problem]:
    """Quotas and policies of the run namespace would hit the system's own pods."""
    if env.namespace in _SYSTEM_NAMESPACES or env.namespace.startswith("kube-"):
        yield Problem(
            "namespace",
            f"{env.namespace} belongs to Kubernetes: our quota and network policy would hit its pods",
            "any name of your own",
            "choose another, such as training",
            "Kubernetes namespaces",
        )


def default_bucket_name_fits(env: Environment) -> Iterator[Problem]:
    """`<name>-archive-<account>-<region>` must be a bucket name."""
    length = len(f"{env.name}-archive--{env.region}") + _ACCOUNT_DIGITS
    if env.archive.bucket is None and length > _BUCKET_NAME_LIMIT:
        over = length - _BUCKET_NAME_LIMIT
        yield Problem(
            "name",
            f"the bucket {env.name}-archive-<account>-{env.region} would have {length} characters",
            f"{_BUCKET_NAME_LIMIT} at most",
            f"shorten the name by {over}, or set archive.bucket",
            "S3 bucket naming rules",
        )


RULES = (
    partition_is_covered,
    zone_is_in_region,
    only_a_reservation_knows_its_zone,
    second_zone_is_another,
    kubernetes_is_covered,
    namespace_is_ours,
    default_bucket_name_fits,
)
