"""Capacity Reservations and Capacity Blocks."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from moto.core.responses import ActionResult

from ops.local.aws.cloudformation.state import ACCOUNT, now
from ops.local.aws.refusals import AwsError
from ops.local.aws.services import interfaces


@dataclass
class Reservation:
    """Instances that EC2 keeps for the account."""

    id: str
    region: str
    instance_type: str
    zone: str
    total: int
    kind: str = "default"
    start: datetime = field(default_factory=now)
    end: datetime | None = None
    cancelled: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    match: str = "open"

    @property
    def state(self) -> str:
        """By the clock, as EC2 has it."""
        if self.cancelled:
            return "cancelled"
        if now() < self.start:
            return "scheduled"
        return "expired" if self.end is not None and now() >= self.end else "active"

    @property
    def available(self) -> int:
        """Instances of it that do not run."""
        running = sum(
            1
            for reservation in interfaces.ec2(self.region).reservations.values()
            for instance in reservation.instances
            if instance.state in ("pending", "running") and self._holds(instance)
        )
        return max(0, self.total - running) if self.state == "active" else 0

    def _holds(self, instance: Any) -> bool:
        """An open reservation takes in what matches it and names none; a targeted one only what names it."""
        named = getattr(instance, "named_reservation", None)
        if named is not None:
            return bool(named == self.id)
        alike = (instance.instance_type, instance.placement.zone) == (self.instance_type, self.zone)
        return alike and self.match == "open"

    def view(self) -> dict[str, Any]:
        """As DescribeCapacityReservations shows it."""
        view: dict[str, Any] = {
            "CapacityReservationId": self.id,
            "OwnerId": ACCOUNT,
            "CapacityReservationArn": f"arn:aws:ec2:{self.region}:{ACCOUNT}:capacity-reservation/{self.id}",
            "InstanceType": self.instance_type,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": self.zone,
            "Tenancy": "default",
            "TotalInstanceCount": self.total,
            "AvailableInstanceCount": self.available,
            "State": self.state,
            "StartDate": self.start,
            "EndDateType": "limited" if self.end else "unlimited",
            "InstanceMatchCriteria": self.match,
            "CreateDate": self.start,
            "ReservationType": self.kind,
            "Tags": [{"Key": key, "Value": value} for key, value in self.tags.items()],
        }
        return view | ({"EndDate": self.end} if self.end else {})


def reservations(region: str) -> dict[str, Reservation]:
    """The region's reservations by id, kept in moto's EC2."""
    return cast(dict[str, Reservation], interfaces.ec2(region).__dict__.setdefault("capacity_reservations", {}))


class ReservationActions:
    """EC2's actions about reservations; moto has none."""

    def create_capacity_reservation(self: Any) -> ActionResult:
        """Reserves instances now."""
        get = self._get_param
        made = Reservation(
            id=f"cr-{secrets.token_hex(9)[:17]}",
            region=self.region,
            instance_type=get("InstanceType"),
            zone=get("AvailabilityZone"),
            total=int(get("InstanceCount")),
            kind="default",
            end=_when(get("EndDate")),
            match=get("InstanceMatchCriteria") or "open",
            tags={t["Key"]: t["Value"] for s in get("TagSpecifications") or [] for t in s.get("Tags", [])},
        )
        reservations(self.region)[made.id] = made
        return ActionResult({"CapacityReservation": made.view()})

    def purchase_capacity_block(self: Any) -> ActionResult:
        """Buys the offering, whose id says type, zone, count, start and end."""
        kind, zone, count, start, end = self._get_param("CapacityBlockOfferingId").split("|")
        made = Reservation(
            id=f"cr-{secrets.token_hex(9)[:17]}",
            region=self.region,
            instance_type=kind,
            zone=zone,
            total=int(count),
            kind="capacity-block",
            start=datetime.fromisoformat(start),
            end=datetime.fromisoformat(end),
            match="targeted",
        )
        reservations(self.region)[made.id] = made
        return ActionResult({"CapacityReservation": made.view()})

    def describe_capacity_reservations(self: Any) -> ActionResult:
        """The reservations asked for, or all."""
        found = reservations(self.region)
        wanted = self._get_param("CapacityReservationIds") or list(found)
        for reservation_id in wanted:
            if reservation_id not in found:
                raise AwsError(
                    "InvalidCapacityReservationId.NotFound",
                    f"The capacity reservation ID '{reservation_id}' does not exist",
                )
        views = [found[reservation_id].view() for reservation_id in wanted]
        for asked in self._get_param("Filters") or []:
            key = "".join(part.capitalize() for part in asked["Name"].split("-"))
            views = [view for view in views if str(view.get(key)) in asked["Values"]]
        return ActionResult({"CapacityReservations": views})

    def cancel_capacity_reservation(self: Any) -> ActionResult:
        """Gives the instances back."""
        found = reservations(self.region).get(self._get_param("CapacityReservationId"))
        if found is None:
            raise AwsError("InvalidCapacityReservationId.NotFound", "The capacity reservation does not exist")
        found.cancelled = True
        return ActionResult({"Return": True})


def _when(value: Any) -> datetime | None:
    if value is None:
        return None
    when = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return when if when.tzinfo else when.replace(tzinfo=UTC)
