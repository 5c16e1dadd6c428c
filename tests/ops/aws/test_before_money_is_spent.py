"""What `check` asks of EC2, EKS and CloudFormation, and what `deploy` refuses, against the emulated AWS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from environments.environment import Environment, parse
from environments.versions import addon_versions
from ops.aws import check, deploy, frozen
from ops.aws.access import Aws
from ops.aws.eks import NodeGroup
from ops.aws.inventory import Item, is_past_its_date
from ops.commands import infrastructure
from ops.errors import RefusedError
from ops.local.aws.local_aws import LocalAws
from ops.local.aws.settings import Settings
from ops.local.aws.testing import TIME_SCALE, World

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
NOON = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    aws = LocalAws(tmp_path_factory.mktemp("aws"))
    aws.start(Settings(time_scale=TIME_SCALE))
    yield World(aws)
    aws.stop()


def environment(**fields: Any) -> Environment:
    base = {
        "name": "small",
        "region": "us-east-1",
        "availability_zone": "us-east-1b",
        "instance_type": "p5.48xlarge",
        "nodes": 2,
        "training": {"data": {"global_batch_size": 16}},
        "access": {"admins": ["arn:aws:iam::123456789012:role/Admin"]},
    }
    return parse({**base, **fields}, "small.yaml")


def asked(world: World, **fields: Any) -> Aws:
    clients = {name: world.client(name) for name in ("ec2", "eks", "cloudformation")}
    return Aws(environment(**fields), boto3.Session(region_name="us-east-1"), clients)


def answers(findings: Iterator[check.Finding]) -> list[tuple[str, str]]:
    return [(finding.state, finding.answer) for finding in findings]


def block(start: datetime, end: datetime, reservation: str = "cr-0123456789abcdef0") -> dict[str, Any]:
    return {"kind": "capacity-block", "reservation": reservation, "start": start, "end": end}


def test_zones_exist_and_take_a_control_plane(world: World) -> None:
    """Reports: eksctl#8208, eksctl#3816 and eksctl#5107 (us-east-1e), containers-roadmap#2204."""
    assert answers(check.zones_take_a_control_plane(asked(world)))[0][0] == "ok"
    second = {"network": {"second_availability_zone": "us-east-1e"}}
    ((state, answer),) = answers(check.zones_take_a_control_plane(asked(world, **second)))
    assert state == "failed" and "us-east-1e is use1-az3" in answer
    ((state, answer),) = answers(check.zones_take_a_control_plane(asked(world, availability_zone="us-east-1z")))
    assert state == "failed" and "there is no us-east-1z; us-east-1 has us-east-1a" in answer


def test_pinned_add_ons_are_still_offered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Report: fsx-csi#372: an add-on's version decides what it can do, so each is pinned."""
    assert answers(check.addons_are_offered(asked(world)))[0][0] == "ok"
    monkeypatch.setattr(check, "addon_versions", lambda version: {**addon_versions(version), "coredns": "v0.0.1"})
    ((state, answer),) = answers(check.addons_are_offered(asked(world)))
    assert state == "failed" and "coredns v0.0.1" in answer and addon_versions("1.35")["coredns"] in answer


def test_times_of_a_block_are_the_reservations(world: World) -> None:
    """Report: EKS guide, capacity-blocks-mng: what still runs at the end is cut off."""
    start, end = NOON + timedelta(days=1), NOON + timedelta(days=3)
    offering = f"p5.48xlarge|us-east-1b|2|{start.isoformat()}|{end.isoformat()}"
    bought = world.client("ec2").purchase_capacity_block(
        CapacityBlockOfferingId=offering, InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]["CapacityReservationId"]
    right = answers(check.reservation_fits(asked(world, capacity=block(start, end, bought))))
    assert [state for state, _ in right] == ["ok"]
    wrong = check.reservation_fits(asked(world, capacity=block(start, end + timedelta(hours=2), bought)))
    assert "has its end at" in answers(wrong)[0][1]


def test_a_block_that_has_ended_and_an_environment_past_its_date(world: World) -> None:
    past = block(NOON - timedelta(days=3), NOON - timedelta(days=1))
    assert answers(check.dates_are_ahead(asked(world, capacity=past)))[0][0] == "failed"
    ahead = block(NOON - timedelta(days=3), NOON + timedelta(days=1))
    assert answers(check.dates_are_ahead(asked(world, capacity=ahead))) == []
    ((state, answer),) = answers(check.dates_are_ahead(asked(world, expires="2020-01-01")))
    assert (state, answer) == ("warning", "the environment expired on 2020-01-01")


def test_a_pod_that_no_host_can_hold(world: World) -> None:
    assert answers(check.pods_fit_the_hosts(asked(world)))[0][0] == "ok"
    many = {"data": {"global_batch_size": 16, "num_workers": 300}}
    ((state, answer),) = answers(check.pods_fit_the_hosts(asked(world, training=many)))
    assert state == "failed" and "GiB of host memory" in answer


def network(cidr: str = "10.0.0.0/16") -> dict[str, Any]:
    subnets = {
        name: {
            "Type": "AWS::EC2::Subnet",
            "Properties": {"VpcId": {"Ref": "Vpc"}, "AvailabilityZone": zone, "CidrBlock": f"10.0.{number}.0/24"},
        }
        for number, (name, zone) in enumerate((("One", "us-east-1b"), ("Two", "us-east-1a")))
    }
    return {"Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": cidr}}, **subnets}


def test_zones_and_addresses_stay_under_an_environment(world: World) -> None:
    assert list(frozen.moved(asked(world, name="frozen"))) == []
    assert world.deploy("frozen-network", network()) == "CREATE_COMPLETE"
    assert list(frozen.moved(asked(world, name="frozen"))) == []
    elsewhere = asked(world, name="frozen", availability_zone="us-east-1c", network={"cidr": "10.1.0.0/16"})
    zone, cidr = list(frozen.moved(elsewhere))
    assert "us-east-1b and us-east-1a, the file says us-east-1c and us-east-1a" in zone
    assert "10.0.0.0/16, the file says 10.1.0.0/16" in cidr
    ((state, _), _) = answers(check.deployed_stays_where_it_is(elsewhere))
    assert state == "failed"
    assert world.delete("frozen-network") == "DELETE_COMPLETE"


def test_a_file_system_neither_shrinks_nor_learns_efa(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = {"StorageCapacity": 4800, "LustreConfiguration": {"DeploymentType": "PERSISTENT_2"}}
    stands = {"Fs": {"Type": "AWS::FSx::FileSystem", "Properties": properties}}
    monkeypatch.setattr(frozen, "deployed", lambda _aws, kind: stands if kind == "storage" else {})
    assert list(frozen.moved(asked(world))) == []
    assert list(frozen.moved(asked(world, file_system={"size_gib": 9600}))) == []
    smaller = list(frozen.moved(asked(world, file_system={"size_gib": 2400})))
    assert len(smaller) == 1 and "4800 GiB are there" in smaller[0]
    assert len(list(frozen.moved(asked(world, file_system={"efa": True})))) == 1


PLACEMENT = {"Group": {"Type": "AWS::EC2::PlacementGroup", "Properties": {"Strategy": "cluster"}}}


def assembly(folder: Path, **properties: str) -> Path:
    resources = {"Group": {**PLACEMENT["Group"], "Properties": properties, "Metadata": {"aws:cdk:path": "x"}}}
    (folder / "small-capacity.template.json").write_text(json.dumps({"Resources": resources}))
    return folder


@pytest.mark.parametrize(
    ("desired", "strategy", "outcome"),
    [
        (3, "cluster", "refused"),  # nodes and spares are two now
        (2, "spread", "asked"),
        (2, "cluster", "quiet"),
        (0, "spread", "quiet"),
    ],
)
def test_a_deployment_spares_nodes_under_a_run(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, desired: int, strategy: str, outcome: str
) -> None:
    """Report: karpenter#701: most evictions of training are made by people's own tools."""
    if not frozen.deployed(asked(world), "capacity"):
        assert world.deploy("small-capacity", PLACEMENT) == "CREATE_COMPLETE"
    monkeypatch.setattr(deploy, "node_group", lambda _aws: NodeGroup("ACTIVE", desired, desired, []))
    questions: list[str] = []
    try:
        deploy._spare_the_nodes(
            asked(world), assembly(tmp_path, Strategy=strategy), lambda: questions.append("asked")
        )
    except RefusedError as refusal:
        assert "3 nodes, and nodes and spares are 2" in refusal.message
        questions.append("refused")
    assert questions == ([] if outcome == "quiet" else [outcome])


@pytest.mark.parametrize(("starts_in", "begun"), [(timedelta(days=1), "no"), (timedelta(minutes=-5), "yes")])
def test_no_schedule_for_a_block_that_has_begun(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts_in: timedelta, begun: str
) -> None:
    """Scheduler refuses a time in the past, and with it the whole stack."""
    monkeypatch.setattr(deploy, "node_group", lambda _aws: None)
    start = datetime.now(UTC) + starts_in
    aws = asked(world, capacity=block(start, start + timedelta(days=2)))
    command = deploy._deploy_command(aws, "capacity", tmp_path)
    assert command[-4:] == [
        "--parameters",
        "small-capacity:DesiredNodes=0",
        "--parameters",
        f"small-capacity:BlockHasBegun={begun}",
    ]
    assert not [word for word in deploy._deploy_command(asked(world), "capacity", tmp_path) if "Block" in word]


def test_nodes_of_a_block_come_while_it_is_active() -> None:
    """Report: EKS guide, capacity-blocks-mng: instances launch only then."""
    now = datetime.now(UTC)
    infrastructure._refuse_outside_the_block(environment())
    infrastructure._refuse_outside_the_block(
        environment(capacity=block(now - timedelta(days=1), NOON + timedelta(days=1)))
    )
    for start, end, said in (
        (now + timedelta(hours=1), now + timedelta(days=2), "begins at"),
        (now - timedelta(days=2), now - timedelta(hours=1), "has ended"),
    ):
        with pytest.raises(RefusedError, match=said):
            infrastructure._refuse_outside_the_block(environment(capacity=block(start, end)))


def test_inventory_names_what_is_past_its_date() -> None:
    things = [Item("VPC", "vpc-1")]
    assert is_past_its_date(environment(expires="2020-01-01"), things)
    assert not is_past_its_date(environment(expires="2020-01-01"), [])
    assert not is_past_its_date(environment(expires="2999-01-01"), things)
    assert not is_past_its_date(environment(), things)
