"""The estimate adds up, says what it does not know, and counts a reservation whether it runs or not."""

from __future__ import annotations

import pytest

from environments.environment import Environment, find, load, parse
from environments.instance_types import INSTANCE_TYPES
from environments.prices import GPU_NODE_USD_H, price, total

pytestmark = pytest.mark.unit

RESERVATION = {"kind": "odcr", "reservation": "cr-0123456789abcdef0"}
BLOCK = {
    "kind": "capacity-block",
    "reservation": "cr-0123456789abcdef0",
    "start": "2027-03-01T11:30:00Z",
    "end": "2027-03-15T11:30:00Z",
}


def environment(**fields: object) -> Environment:
    return parse({**load(find("two-node-p5")).model_dump(exclude_unset=True), **fields}, "test")


def test_every_instance_type_has_a_line() -> None:
    assert set(GPU_NODE_USD_H) == set(INSTANCE_TYPES)


def test_two_p5_on_demand() -> None:
    lines = price(environment())
    assert total(lines, "nodes") == pytest.approx(2 * 55.04)
    lustre = next(line for line in lines if line.what.startswith("FSx"))
    assert lustre.usd_per_month == pytest.approx(4800 * 0.600)
    assert total(lines, "deployed") == pytest.approx(
        0.10 + 1 / 730 + 2 * (0.2016 + 100 * 0.08 / 730) + 0.045 + 4800 * 0.6 / 730
    )


def test_spares_cost_as_much_as_the_others() -> None:
    assert total(price(environment(spares=1)), "nodes") == pytest.approx(3 * 55.04)


def test_a_reservation_bills_from_deploy_on_and_a_block_is_paid() -> None:
    reserved = price(environment(capacity=RESERVATION))
    assert total(reserved, "nodes") == 0
    assert total(reserved, "deployed") > 2 * 55.04
    assert total(price(environment(capacity=BLOCK)), "nodes") == 0


def test_what_is_not_known_is_said_not_guessed() -> None:
    lines = price(environment(instance_type="p5e.48xlarge", system_nodes={"instance_type": "x2idn.16xlarge"}))
    unknown = [line for line in lines if line.usd_per_hour is None]
    assert [line.what.split()[-1] for line in unknown] == ["x2idn.16xlarge", "p5e.48xlarge"]
    assert all(line.usd_per_month is None for line in unknown)


def test_endpoints_cost_by_the_zone() -> None:
    closed = environment(account="111122223333", network={"egress": "endpoints"})
    lines = price(closed)
    assert not any("NAT" in line.what for line in lines)
    assert next(line for line in lines if "endpoints" in line.what).usd_per_hour == pytest.approx(2 * 10 * 0.01)


def test_provisioned_metadata_is_a_line_of_its_own() -> None:
    lines = price(environment(file_system={"metadata_iops": 6000}))
    assert next(line for line in lines if "metadata" in line.what).usd_per_month == pytest.approx(330)
