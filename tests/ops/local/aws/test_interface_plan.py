"""Interface plans of launch templates, against the instance table."""

from __future__ import annotations

from typing import Any

import pytest
from moto.core.exceptions import ServiceException

from environments.instance_types import INSTANCE_TYPES
from ops.local.aws.services import interface_plan

pytestmark = pytest.mark.unit


def plan_of(instance_type: str, layout: Any = "recommended") -> list[dict[str, Any]]:
    return [
        {"NetworkCardIndex": i.card, "DeviceIndex": i.device, "InterfaceType": i.type}
        for i in INSTANCE_TYPES[instance_type].interfaces(layout)
    ]


@pytest.mark.parametrize("instance_type", INSTANCE_TYPES)
@pytest.mark.parametrize("layout", ["recommended", "classic"])
def test_the_tables_plans_are_taken(instance_type: str, layout: str) -> None:
    interface_plan.check({"NetworkInterfaces": plan_of(instance_type, layout)}, instance_type)


P5 = "p5.48xlarge"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"DeviceIndex": 2, "NetworkCardIndex": 2}, "The specified number '2' for the device index exceeds"),
        ({"NetworkCardIndex": 32, "DeviceIndex": 0}, "network card index '32' is not supported"),
        ({"NetworkCardIndex": 0, "DeviceIndex": 1}, "requires a unique device index"),
        ({"InterfaceType": "efaonly"}, "Invalid value 'efaonly' for InterfaceType"),
        ({"NetworkCardIndex": 3, "DeviceIndex": 1}, "EFA interfaces exceed what network card 3"),
    ],
)
def test_wrong_interfaces_are_refused(change: dict[str, Any], reason: str) -> None:
    plan = plan_of(P5)
    plan[5] |= change
    with pytest.raises(ServiceException, match=reason):
        interface_plan.check({"NetworkInterfaces": plan}, P5)


def test_the_primary_interface_is_never_efa_only() -> None:
    plan = plan_of(P5)
    plan[0]["InterfaceType"] = "efa-only"
    with pytest.raises(ServiceException, match="can't be the primary"):
        interface_plan.check({"NetworkInterfaces": plan}, P5)


def test_security_groups_stand_in_one_place_only() -> None:
    template = {"NetworkInterfaces": plan_of(P5), "SecurityGroupIds": ["sg-1"]}
    with pytest.raises(ServiceException, match="may not be specified on the same request"):
        interface_plan.check(template, P5)
