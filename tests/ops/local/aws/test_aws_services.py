"""Every service through CloudFormation and boto3: real objects that change as AWS's do."""

from __future__ import annotations

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from whole_stack import BASE, until

from ops.local.aws.testing import World
from ops.local.aws.testing import templates as t

pytestmark = pytest.mark.integration


def test_boto3_sees_the_cluster_with_all_that_belongs_to_it(deployed: World) -> None:
    """Obstacles 2, 14 and 15."""
    eks = deployed.client("eks")
    cluster = eks.describe_cluster(name="test")["cluster"]
    assert (cluster["status"], cluster["version"]) == ("ACTIVE", "1.35")
    assert cluster["accessConfig"]["authenticationMode"] == "API"
    group = eks.describe_nodegroup(clusterName="test", nodegroupName="nodes")["nodegroup"]
    assert group["labels"] == {"pool": "gpu"}
    assert group["taints"] == [{"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}]
    assert group["scalingConfig"]["desiredSize"] == 0
    assert group["launchTemplate"]["version"] == "1"
    assert eks.list_addons(clusterName="test")["addons"] == ["coredns"]
    assert eks.describe_addon(clusterName="test", addonName="coredns")["addon"]["status"] == "ACTIVE"
    principal = eks.list_access_entries(clusterName="test")["accessEntries"][0]
    policies = eks.list_associated_access_policies(clusterName="test", principalArn=principal)
    assert policies["associatedAccessPolicies"][0]["policyArn"].endswith("AmazonEKSClusterAdminPolicy")
    association = eks.list_pod_identity_associations(clusterName="test")["associations"][0]
    assert (association["namespace"], association["serviceAccount"]) == ("training", "trainer")


def test_boto3_sees_the_launch_template_with_every_interface(deployed: World) -> None:
    ec2 = deployed.client("ec2")
    template = ec2.describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateId"]
    versions = ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"]
    interfaces = versions[0]["LaunchTemplateData"]["NetworkInterfaces"]
    assert len(interfaces) == 33
    assert sum(i["InterfaceType"] == "efa-only" for i in interfaces) == 32
    assert ec2.describe_placement_groups()["PlacementGroups"][0]["Strategy"] == "cluster"


def test_boto3_sees_the_file_system_and_its_link(deployed: World) -> None:
    fsx = deployed.client("fsx")
    found = fsx.describe_file_systems()["FileSystems"][0]
    assert found["Lifecycle"] == "AVAILABLE"
    assert found["LustreConfiguration"]["PerUnitStorageThroughput"] == 250
    assert len(found["LustreConfiguration"]["MountName"]) == 8
    assert len(found["NetworkInterfaceIds"]) == 1
    link = fsx.describe_data_repository_associations()["Associations"][0]
    assert (link["Lifecycle"], link["DataRepositoryPath"]) == ("AVAILABLE", "s3://repository/runs")


def test_a_group_has_exactly_the_rules_of_the_template(deployed: World) -> None:
    """Obstacle 15: inline egress replaces the open default; without any the default stays."""
    ec2 = deployed.client("ec2")
    description = [{"Name": "description", "Values": ["of the file system"]}]
    group = ec2.describe_security_groups(Filters=description)["SecurityGroups"][0]
    own = [p for p in group["IpPermissionsEgress"] if p.get("UserIdGroupPairs")]
    assert own[0]["UserIdGroupPairs"][0]["GroupId"] == group["GroupId"]
    assert group["IpPermissions"][0]["UserIdGroupPairs"][0]["GroupId"] == group["GroupId"]


# --- states take their time


def test_a_node_group_scales_by_instances_with_all_their_interfaces(deployed: World) -> None:
    eks, ec2 = deployed.client("eks"), deployed.client("ec2")
    mine = [{"Name": "tag:eks:nodegroup-name", "Values": ["nodes"]}]
    alive = [*mine, {"Name": "instance-state-name", "Values": ["running"]}]
    eks.update_nodegroup_config(clusterName="test", nodegroupName="nodes", scalingConfig={"desiredSize": 2})
    with pytest.raises(ClientError, match="not in Active State"):
        eks.update_nodegroup_config(clusterName="test", nodegroupName="nodes", scalingConfig={"desiredSize": 1})
    until(lambda: len(ec2.describe_instances(Filters=alive)["Reservations"]) == 2)
    efa = [{"Name": "description", "Values": ["efa-only of *"]}]
    assert len(ec2.describe_network_interfaces(Filters=efa)["NetworkInterfaces"]) == 64
    wait_active(eks)
    eks.update_nodegroup_config(clusterName="test", nodegroupName="nodes", scalingConfig={"desiredSize": 0})
    until(lambda: not ec2.describe_instances(Filters=alive)["Reservations"])
    assert ec2.describe_network_interfaces(Filters=efa)["NetworkInterfaces"] == []
    wait_active(eks)


def test_a_terminated_instance_is_replaced(deployed: World) -> None:
    ec2 = deployed.client("ec2")
    mine = [{"Name": "tag:eks:nodegroup-name", "Values": ["system"]}]
    alive = [*mine, {"Name": "instance-state-name", "Values": ["running"]}]

    def running() -> list[str]:
        found = ec2.describe_instances(Filters=alive)["Reservations"]
        return [instance["InstanceId"] for r in found for instance in r["Instances"]]

    [before] = running()
    ec2.terminate_instances(InstanceIds=[before])
    assert until(lambda: [i for i in running() if i != before])


def wait_active(eks: Any, name: str = "nodes") -> None:
    until(
        lambda: eks.describe_nodegroup(clusterName="test", nodegroupName=name)["nodegroup"]["status"] == "ACTIVE"
    )


def test_an_export_task_ends_and_can_be_held_up(deployed: World) -> None:
    fsx = deployed.client("fsx")
    name = fsx.describe_file_systems()["FileSystems"][0]["FileSystemId"]

    def start() -> str:
        made = fsx.create_data_repository_task(
            Type="EXPORT_TO_REPOSITORY", FileSystemId=name, Paths=["runs"], Report={"Enabled": False}
        )
        return str(made["DataRepositoryTask"]["TaskId"])

    def state(task: str) -> str:
        return str(fsx.describe_data_repository_tasks(TaskIds=[task])["DataRepositoryTasks"][0]["Lifecycle"])

    task = start()
    with pytest.raises(ClientError, match="already executing"):
        start()
    until(lambda: state(task) == "SUCCEEDED")
    deployed.fail(kind="export_pending")
    task = start()
    time.sleep(0.5)
    assert state(task) == "PENDING"
    fsx.cancel_data_repository_task(TaskId=task)
    assert state(task) == "CANCELED"


# --- what AWS refuses


def test_no_capacity_ends_a_node_group_as_aws_ends_it(deployed: World) -> None:
    deployed.fail(kind="no_capacity", match="p5.*")
    more = {**BASE, "Full": t.node_group(1, NodegroupName="full", LaunchTemplate={"Id": t.ref("Template")})}
    assert deployed.deploy("all", more) == "UPDATE_ROLLBACK_COMPLETE"
    reason = deployed.reasons("all", "CREATE_FAILED")["Full"]
    assert "AsgInstanceLaunchFailures" in reason
    assert "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone" in reason
    assert "full" not in deployed.client("eks").list_nodegroups(clusterName="test")["nodegroups"]


def test_reservations_and_quotas_end_node_groups_as_aws_ends_them(deployed: World) -> None:
    ec2, aws = deployed.client("ec2"), deployed.aws
    made = ec2.create_capacity_reservation(
        InstanceType="p5.48xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=1
    )
    reservation = made["CapacityReservation"]["CapacityReservationId"]
    aws.configure(aws.settings.model_copy(update={"quotas": {"p_vcpus": 191}}))
    named = {"CapacityReservationTarget": {"CapacityReservationId": reservation}}
    more = {
        **BASE,
        "Reserved": t.launch_template(CapacityReservationSpecification=named),
        "TooMany": t.node_group(2, NodegroupName="too-many", LaunchTemplate={"Id": t.ref("Reserved")}),
    }
    assert deployed.deploy("all", more) == "UPDATE_ROLLBACK_COMPLETE"
    start = "Code=AsgInstanceLaunchFailures, Message=Could not launch On-Demand Instances. "
    reason = deployed.reasons("all", "CREATE_FAILED")["TooMany"]
    assert start + "ReservationCapacityExceeded - The requested reservation does not have sufficient" in reason
    beyond = {**BASE, "Beyond": t.node_group(1, NodegroupName="beyond", LaunchTemplate={"Id": t.ref("Template")})}
    assert deployed.deploy("all", beyond) == "UPDATE_ROLLBACK_COMPLETE"
    reason = deployed.reasons("all", "CREATE_FAILED")["Beyond"]
    assert start + "VcpuLimitExceeded - You have requested more vCPU capacity than" in reason
    aws.configure(aws.settings.model_copy(update={"quotas": {}}))
    ec2.cancel_capacity_reservation(CapacityReservationId=reservation)
    [left] = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])["CapacityReservations"]
    assert (left["State"], left["AvailableInstanceCount"]) == ("cancelled", 0)


def test_scaling_without_capacity_says_so_and_goes_on_when_there_is_some(deployed: World) -> None:
    eks = deployed.client("eks")

    def issues() -> Any:
        return eks.describe_nodegroup(clusterName="test", nodegroupName="nodes")["nodegroup"]["health"]["issues"]

    deployed.fail(kind="no_capacity", match="p5.48xlarge")
    eks.update_nodegroup_config(clusterName="test", nodegroupName="nodes", scalingConfig={"desiredSize": 1})
    assert "InsufficientInstanceCapacity" in until(issues)[0]["message"]
    deployed.fail()
    until(lambda: not issues())
    wait_active(eks)
    eks.update_nodegroup_config(clusterName="test", nodegroupName="nodes", scalingConfig={"desiredSize": 0})
    wait_active(eks)


def test_quotas_are_enforced_and_shown(deployed: World) -> None:
    aws, ec2 = deployed.aws, deployed.client("ec2")
    aws.configure(aws.settings.model_copy(update={"quotas": {"elastic_ips": 1, "vpcs": 2}}))
    with pytest.raises(ClientError, match="The maximum number of addresses has been reached"):
        ec2.allocate_address(Domain="vpc")
    with pytest.raises(ClientError, match="The maximum number of VPCs has been reached"):
        ec2.create_vpc(CidrBlock="10.9.0.0/16")
    quota = deployed.client("service-quotas").get_service_quota(ServiceCode="vpc", QuotaCode="L-F678F1CE")
    assert quota["Quota"]["Value"] == 2
    aws.configure(aws.settings.model_copy(update={"quotas": {}}))
