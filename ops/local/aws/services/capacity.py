"""Whether EC2 has instances to give: capacity, quotas, reservations."""

from __future__ import annotations

from typing import Any

from environments.instance_types import INSTANCE_TYPES
from ops.local.aws.refusals import AwsError
from ops.local.aws.services import interfaces, quotas
from ops.local.aws.services.reservations import Reservation, reservations
from ops.local.aws.settings import LIVE

Data = dict[str, Any]
STANDARD_VCPUS = 4


def check(region: str, kind: str, zone: str, template: Data) -> None:
    """Refuses one more instance as EC2 does."""
    if LIVE.strikes("no_capacity", kind):
        _no_capacity(region, kind, zone)
    if reservation_id := reservation_of(template):
        _check_reservation(region, reservation_id, kind, zone)
    else:
        _check_quota(region, kind)


def reservation_of(template: Data) -> str | None:
    """The reservation that a launch template names."""
    target = template.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    found: str | None = target.get("CapacityReservationId")
    return found


def _no_capacity(region: str, kind: str, zone: str) -> None:
    others = ", ".join(z.name for z in interfaces.ec2(region).describe_availability_zones() if z.name != zone)
    raise AwsError(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested ({zone}). "
        f"Our system will be working on provisioning additional capacity. You can currently get {kind} "
        f"capacity by not specifying an Availability Zone in your request or choosing {others}.",
    )


def _check_reservation(region: str, reservation_id: str, kind: str, zone: str) -> None:
    found: Reservation | None = reservations(region).get(reservation_id)
    if found is None:
        raise AwsError(
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation ID '{reservation_id}' does not exist",
        )
    if found.state != "active":
        raise AwsError(
            "InvalidCapacityReservationState", f"The capacity reservation '{reservation_id}' is not active."
        )
    # one refusal for all three: the wrong type, the wrong zone, and too few (terraform-provider-aws#35745)
    if (found.instance_type, found.zone) != (kind, zone) or found.available <= 0:
        raise AwsError(
            "ReservationCapacityExceeded",
            "The requested reservation does not have sufficient compatible and available capacity for this "
            "request.",
        )


def _bucket(kind: str) -> str:
    return {"p": "p_vcpus", "g": "g_vcpus"}.get(kind[0], "standard_vcpus")


def _vcpus(kind: str) -> int:
    entry = INSTANCE_TYPES.get(kind)
    return entry.vcpus if entry else STANDARD_VCPUS


def _check_quota(region: str, kind: str) -> None:
    bucket = _bucket(kind)
    running = sum(
        _vcpus(instance.instance_type)
        for reservation in interfaces.ec2(region).reservations.values()
        for instance in reservation.instances
        if instance.state in ("pending", "running") and _bucket(instance.instance_type) == bucket
    )
    allowed = quotas.limit(bucket)
    if running + _vcpus(kind) > allowed:
        raise AwsError(
            "VcpuLimitExceeded",
            f"You have requested more vCPU capacity than your current vCPU limit of {allowed} allows for the "
            "instance bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
        )
