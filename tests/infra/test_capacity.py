"""How each kind of capacity is asked for, in every environment of the matrix."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from environments.environment import Environment
from infra.templates import Template, Templates

if TYPE_CHECKING:
    from conftest import Matrix

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def capacity(templates: Templates) -> Template:
    return templates.by_kind["capacity"]


def launch(templates: Templates) -> dict[str, Any]:
    data: dict[str, Any] = capacity(templates)["Resources"]["GpuLaunchTemplate"]["Properties"][
        "LaunchTemplateData"
    ]
    return data


def of_kind(matrix: Matrix, kind: str) -> list[tuple[Environment, Templates]]:
    found = [
        (environment, templates) for environment, templates in matrix.each() if environment.capacity.kind == kind
    ]
    assert found
    return found


def test_the_table_decides_interfaces_type_and_size(matrix: Matrix) -> None:
    """Reports: aws-cdk#7928, cdk-eks-blueprints#1237: CDK has no way to EFA interfaces. containers-roadmap#2204:
    a group that asks for nodes as it is made rolls everything back with it."""
    for environment, templates in matrix.each():
        data, total = launch(templates), environment.nodes + environment.spares
        found = [
            (one["NetworkCardIndex"], one["DeviceIndex"], one["InterfaceType"])
            for one in data["NetworkInterfaces"]
        ]
        table = environment.instance.interfaces(environment.interfaces)
        assert found == [(one.card, one.device, one.type) for one in table], environment.name
        assert data["InstanceType"] == environment.instance_type
        group = capacity(templates)["Resources"]["GpuNodeGroup"]["Properties"]
        assert group["ScalingConfig"] == {"MinSize": 0, "DesiredSize": {"Ref": "DesiredNodes"}, "MaxSize": total}
        assert capacity(templates)["Parameters"]["DesiredNodes"]["Default"] == 0
        assert group["UpdateConfig"]["UpdateStrategy"] == "MINIMAL"
        assert group["NodeRepairConfig"] == {"Enabled": True}
        # Report: karpenter#701: nothing of ours evicts training; one subnet, so no balancing of zones either.
        assert group["ForceUpdateEnabled"] is False and len(group["Subnets"]) == 1


def test_on_demand_has_a_placement_group_of_its_own(matrix: Matrix) -> None:
    for environment, templates in of_kind(matrix, "on-demand"):
        data = launch(templates)
        assert data["Placement"] == {"GroupName": {"Ref": "GpuPlacementGroup"}}, environment.name
        assert "CapacityReservationSpecification" not in data and "InstanceMarketOptions" not in data


def test_a_reservation_keeps_its_own_placement_group(matrix: Matrix) -> None:
    """An existing reservation cannot be moved into a group of ours."""
    for environment, templates in of_kind(matrix, "odcr"):
        data = launch(templates)
        assert data["Placement"] == {"GroupName": "theirs"}, environment.name
        target = data["CapacityReservationSpecification"]["CapacityReservationTarget"]
        assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
        assert "InstanceMarketOptions" not in data
        assert not list(templates.of_type("AWS::EC2::PlacementGroup"))


def test_a_block_is_filled_by_a_schedule_that_may_do_nothing_else(matrix: Matrix) -> None:
    for environment, templates in of_kind(matrix, "capacity-block"):
        data, resources = launch(templates), capacity(templates)["Resources"]
        assert data["InstanceMarketOptions"] == {"MarketType": "capacity-block"}, environment.name
        assert "Placement" not in data
        assert resources["GpuNodeGroup"]["Properties"]["CapacityType"] == "CAPACITY_BLOCK"
        ((_, schedule),) = templates.of_type("AWS::Scheduler::Schedule")
        assert schedule["Condition"] == "BlockIsAhead"
        assert capacity(templates)["Parameters"]["BlockHasBegun"]["Default"] == "no"
        properties = schedule["Properties"]
        assert properties["ScheduleExpression"] == "at(2027-03-01T11:31:00)"
        assert properties["ScheduleExpressionTimezone"] == "UTC"
        assert json.loads(properties["Target"]["Input"]) == {
            "ClusterName": environment.name,
            "NodegroupName": f"{environment.name}-gpu-capacity-block",
            "ScalingConfig": {"DesiredSize": environment.nodes + environment.spares},
        }
        _, role_id = templates.target("capacity", properties["Target"]["RoleArn"]) or ("", "")
        (policy,) = resources[role_id]["Properties"]["Policies"]
        (statement,) = policy["PolicyDocument"]["Statement"]
        assert statement["Action"] == "eks:UpdateNodegroupConfig"
        assert statement["Resource"] == {"Fn::GetAtt": ["GpuNodeGroup", "Arn"]}


def test_gpu_nodes_wear_three_groups_and_the_taint(matrix: Matrix) -> None:
    for environment, templates in matrix.each():
        for interface in launch(templates)["NetworkInterfaces"]:
            worn = [templates.target("capacity", group) for group in interface["Groups"]]
            assert worn == [
                ("cluster", "Cluster"),
                ("network", "EfaSecurityGroup"),
                ("network", "LustreClientsSecurityGroup"),
            ], environment.name
        taints = capacity(templates)["Resources"]["GpuNodeGroup"]["Properties"]["Taints"]
        assert taints == [{"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}]
