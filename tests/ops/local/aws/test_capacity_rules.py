"""Which instances EC2 gives: reservations and quotas, in its own words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from ops.local.aws.cloudformation.state import now
from ops.local.aws.refusals import AwsError
from ops.local.aws.services import capacity, interfaces
from ops.local.aws.services.reservations import Reservation, reservations
from ops.local.aws.settings import LIVE, Settings

pytestmark = pytest.mark.unit

REGION, ZONE, OTHER_ZONE = "eu-west-1", "eu-west-1a", "eu-west-1b"
P5, P5EN = "p5.48xlarge", "p5en.48xlarge"
NOT_ENOUGH = (
    "The requested reservation does not have sufficient compatible and available capacity for this request."
)
TARGETED = {"CapacityReservationSpecification": {"CapacityReservationTarget": {"CapacityReservationId": "cr-1"}}}


@pytest.fixture(autouse=True)
def empty_region() -> Iterator[None]:
    """moto's EC2 without anything in it."""
    interfaces.ec2(REGION).reset()
    yield
    interfaces.ec2(REGION).reset()


@pytest.fixture
def quotas(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets quotas."""

    def set_them(**values: int) -> None:
        monkeypatch.setattr(LIVE, "_settings", Settings(quotas=values))

    return set_them


def reserve(kind: str = P5, zone: str = ZONE, total: int = 1, **more: Any) -> Reservation:
    made = Reservation("cr-1", REGION, kind, zone, total, **more)
    reservations(REGION)[made.id] = made
    return made


def run(count: int, kind: str = P5, zone: str = ZONE, named: str | None = None) -> None:
    launched = interfaces.ec2(REGION).run_instances(
        "ami-1", count, None, [], instance_type=kind, is_instance_type_default=False, placement=zone
    )
    for instance in launched.instances:
        instance.named_reservation = named


def refusal(template: dict[str, Any], kind: str = P5, zone: str = ZONE) -> tuple[str, str]:
    with pytest.raises(AwsError) as refused:
        capacity.check(REGION, kind, zone, template)
    return refused.value.code, refused.value.message


def test_a_reservation_gives_what_it_has_and_shows_what_is_left() -> None:
    made = reserve(total=2)
    capacity.check(REGION, P5, ZONE, TARGETED)
    run(1, named="cr-1")
    capacity.check(REGION, P5, ZONE, TARGETED)
    assert made.view()["AvailableInstanceCount"] == 1


@pytest.mark.parametrize(
    ("reserved", "running"),
    [({"kind": P5EN}, 0), ({"zone": OTHER_ZONE}, 0), ({"total": 1}, 1), ({"total": 0}, 0)],
    ids=["another type", "another zone", "one too many", "none at all"],
)
def test_a_reservation_that_does_not_fit_is_refused(reserved: dict[str, Any], running: int) -> None:
    reserve(**reserved)
    run(running, named="cr-1") if running else None
    assert refusal(TARGETED) == ("ReservationCapacityExceeded", NOT_ENOUGH)


def test_a_reservation_that_is_not_there_is_refused() -> None:
    message = "The capacity reservation ID 'cr-1' does not exist"
    assert refusal(TARGETED) == ("InvalidCapacityReservationId.NotFound", message)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"cancelled": True}, "cancelled"),
        ({"start": now() + timedelta(hours=1), "kind": "capacity-block"}, "scheduled"),
        ({"end": now() - timedelta(seconds=1)}, "expired"),
    ],
)
def test_a_reservation_gives_nothing_before_and_after_its_time(change: dict[str, Any], state: str) -> None:
    made = reserve()
    for name, value in change.items():
        setattr(made, name, value)
    assert (made.state, made.available) == (state, 0)
    code, message = refusal(TARGETED)
    assert (code, message) == ("InvalidCapacityReservationState", "The capacity reservation 'cr-1' is not active.")


@pytest.mark.parametrize(
    ("match", "kind", "zone", "named", "left"),
    [
        ("open", P5, ZONE, None, 1),
        ("open", P5, OTHER_ZONE, None, 2),
        ("open", P5EN, ZONE, None, 2),
        ("open", P5, ZONE, "cr-2", 2),
        ("targeted", P5, ZONE, None, 2),
        ("targeted", P5, ZONE, "cr-1", 1),
    ],
)
def test_only_what_runs_in_a_reservation_uses_it_up(
    match: str, kind: str, zone: str, named: str | None, left: int
) -> None:
    made = reserve(total=2, match=match)
    run(1, kind, zone, named)
    assert made.available == left


def test_p_instances_have_a_quota_of_vcpus(quotas: Callable[..., None]) -> None:
    quotas(p_vcpus=384)
    run(1)
    capacity.check(REGION, P5, ZONE, {})
    run(1, P5EN)
    assert refusal({}) == (
        "VcpuLimitExceeded",
        "You have requested more vCPU capacity than your current vCPU limit of 384 allows for the instance bucket "
        "that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request "
        "to request an adjustment to this limit.",
    )


def test_other_types_have_other_quotas_and_a_reservation_has_none(quotas: Callable[..., None]) -> None:
    quotas(p_vcpus=0)
    capacity.check(REGION, "m7i.xlarge", ZONE, {})
    reserve()
    capacity.check(REGION, P5, ZONE, TARGETED)
    assert refusal({})[0] == "VcpuLimitExceeded"
    quotas(standard_vcpus=3)
    assert refusal({}, "m7i.xlarge")[0] == "VcpuLimitExceeded"
