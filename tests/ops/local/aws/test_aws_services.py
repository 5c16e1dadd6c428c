"""Every service through CloudFormation and boto3: real objects, real refusals, nothing afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ops.local.aws.testing import World
from ops.local.aws.testing import templates as t

pytestmark = pytest.mark.integration


def until(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """Polls for something true."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("never came true")


BASE = {
    **t.network(),
    **t.cluster(),
    "FileSystem": t.file_system(),
    "Bucket": t.resource("S3::Bucket", BucketName="repository"),
    "Link": t.resource(
        "FSx::DataRepositoryAssociation",
        FileSystemId=t.ref("FileSystem"),
        FileSystemPath="/runs",
        DataRepositoryPath={"Fn::Sub": "s3://${Bucket}/runs"},
        S3={"AutoExportPolicy": {"Events": ["NEW", "CHANGED"]}},
    ),
    "Template": t.launch_template(),
    "Gpu": t.node_group(
        Labels={"pool": "gpu"},
        Taints=[{"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}],
        LaunchTemplate={"Id": t.ref("Template"), "Version": t.att("Template", "LatestVersionNumber")},
    ),
    "System": t.node_group(1, NodegroupName="system", InstanceTypes=["m7i.xlarge"]),
    "Dns": {
        **t.resource("EKS::Addon", ClusterName=t.ref("Cluster"), AddonName="coredns"),
        "DependsOn": "System",
    },
    "Entry": t.resource(
        "EKS::AccessEntry",
        ClusterName=t.ref("Cluster"),
        PrincipalArn=t.att("NodeRole", "Arn"),
        AccessPolicies=[
            {
                "PolicyArn": "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
                "AccessScope": {"Type": "cluster"},
            }
        ],
    ),
    "Identity": t.resource(
        "EKS::PodIdentityAssociation",
        ClusterName=t.ref("Cluster"),
        Namespace="training",
        ServiceAccount="trainer",
        RoleArn=t.att("NodeRole", "Arn"),
    ),
    "Placement": t.resource("EC2::PlacementGroup", Strategy="cluster"),
    "Repository": t.resource("ECR::Repository", RepositoryName="trainer"),
    "Key": t.resource("KMS::Key", KeyPolicy={"Version": "2012-10-17", "Statement": []}),
    "Topic": t.resource("SNS::Topic", TopicName="alarms"),
    "Alarm": t.resource(
        "CloudWatch::Alarm",
        AlarmName="full",
        MetricName="FreeDataStorageCapacity",
        Namespace="AWS/FSx",
        Statistic="Sum",
        Period=300,
        EvaluationPeriods=1,
        Threshold=1,
        ComparisonOperator="LessThanThreshold",
        AlarmActions=[t.ref("Topic")],
    ),
    "Dashboard": t.resource("CloudWatch::Dashboard", DashboardName="runs", DashboardBody='{"widgets": []}'),
    "Schedule": t.resource(
        "Scheduler::Schedule",
        Name="scale-up",
        ScheduleExpression="at(2030-01-01T00:00:00)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={
            "Arn": "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig",
            "RoleArn": t.att("NodeRole", "Arn"),
        },
    ),
    "Build": t.resource(
        "CodeBuild::Project",
        Name="image",
        ServiceRole=t.att("NodeRole", "Arn"),
        Source={"Type": "NO_SOURCE", "BuildSpec": "version: 0.2"},
        Artifacts={"Type": "NO_ARTIFACTS"},
        Environment={
            "Type": "LINUX_CONTAINER",
            "ComputeType": "BUILD_GENERAL1_SMALL",
            "Image": "aws/codebuild/standard:7.0",
        },
    ),
}


@pytest.fixture(scope="module")
def deployed(world: World) -> Iterator[World]:
    """The whole stack, and at the end nothing of it."""
    assert world.deploy("all", BASE) == "CREATE_COMPLETE", world.reasons("all", "CREATE_FAILED")
    yield world
    assert world.delete("all") == "DELETE_COMPLETE", world.reasons("all", "DELETE_FAILED")
    assert leftovers(world) == {}


def leftovers(world: World) -> dict[str, Any]:
    """Whatever of the stack boto3 still sees."""
    ec2, eks, fsx = (world.client(s) for s in ("ec2", "eks", "fsx"))
    found = {
        "vpcs": [v["VpcId"] for v in ec2.describe_vpcs()["Vpcs"] if not v["IsDefault"]],
        "interfaces": ec2.describe_network_interfaces()["NetworkInterfaces"],
        "addresses": ec2.describe_addresses()["Addresses"],
        "endpoints": ec2.describe_vpc_endpoints()["VpcEndpoints"],
        "gateways": ec2.describe_internet_gateways()["InternetGateways"],
        "nat": [n for n in ec2.describe_nat_gateways()["NatGateways"] if n["State"] != "deleted"],
        "templates": ec2.describe_launch_templates()["LaunchTemplates"],
        "placement": ec2.describe_placement_groups()["PlacementGroups"],
        "groups": [g for g in ec2.describe_security_groups()["SecurityGroups"] if g["GroupName"] != "default"],
        "clusters": eks.list_clusters()["clusters"],
        "file systems": fsx.describe_file_systems()["FileSystems"],
        "links": fsx.describe_data_repository_associations()["Associations"],
        "alarms": world.client("cloudwatch").describe_alarms()["MetricAlarms"],
        "dashboards": world.client("cloudwatch").list_dashboards()["DashboardEntries"],
        "topics": world.client("sns").list_topics()["Topics"],
        "schedules": world.client("scheduler").list_schedules()["Schedules"],
        "projects": world.client("codebuild").list_projects()["projects"],
        "repositories": world.client("ecr").describe_repositories()["repositories"],
        "roles": world.client("iam").list_roles()["Roles"],
    }
    return {kind: things for kind, things in found.items() if things}


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


@pytest.mark.parametrize(
    ("service", "operation", "arguments", "reason"),
    [
        ("ec2", "delete_vpc", {"VpcId": "Vpc"}, "has dependencies and cannot be deleted"),
        ("ec2", "delete_subnet", {"SubnetId": "SubnetA"}, "has dependencies and cannot be deleted"),
        ("ec2", "delete_security_group", {"GroupId": "Group"}, "has a dependent object"),
        ("ec2", "delete_route_table", {"RouteTableId": "Table"}, "has dependencies and cannot be deleted"),
        (
            "ec2",
            "detach_internet_gateway",
            {"InternetGatewayId": "Gateway", "VpcId": "Vpc"},
            "has some mapped public address",
        ),
        ("eks", "delete_cluster", {"name": "Cluster"}, "Cluster has nodegroups attached"),
        ("ecr", "create_repository", {"repositoryName": "Repository"}, "already exists"),
    ],
)
def test_what_is_in_use_stays(
    deployed: World, service: str, operation: str, arguments: dict[str, str], reason: str
) -> None:
    """Obstacle 11: moto deletes nothing and says so to nobody, or deletes everything."""
    found = deployed.client("cloudformation").describe_stack_resources(StackName="all")["StackResources"]
    ids = {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in found}
    real = {key: ids[value] for key, value in arguments.items()}
    with pytest.raises(ClientError, match=reason):
        getattr(deployed.client(service), operation)(**real)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("Fs", t.file_system(EfaEnabled=True), "EFA is only supported for PERSISTENT_2 filesystems with metadata"),
    (
        "Fs",
        t.resource(
            "FSx::FileSystem",
            FileSystemType="LUSTRE",
            StorageCapacity=1300,
            SubnetIds=[t.ref("SubnetA")],
            LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
        ),
        "Invalid Lustre FS storage capacity: 1300",
    ),
    (
        "Ng",
        t.node_group(NodegroupName="x", LaunchTemplate={"Id": t.ref("Template")}, DiskSize=100),
        "Disk size must be specified within the launch template.",
    ),
    (
        "Ng",
        t.node_group(NodegroupName="x", LaunchTemplate={"Id": t.ref("Template")}, InstanceTypes=["p5.48xlarge"]),
        "Cannot specify instance types in launch template and API request",
    ),
    (
        "Ng",
        t.node_group(NodegroupName="x", ScalingConfig={"MinSize": 2, "DesiredSize": 1, "MaxSize": 3}),
        "Minimum capacity 2 can't be greater than desired size 1",
    ),
    ("Ng", t.node_group(NodegroupName="nodes"), "NodeGroup already exists with name nodes"),
    (
        "Cl",
        t.resource(
            "EKS::Cluster",
            Name="second",
            RoleArn=t.att("ClusterRole", "Arn"),
            Version="1.99",
            ResourcesVpcConfig={"SubnetIds": [t.ref("SubnetA"), t.ref("SubnetB")]},
        ),
        "unsupported Kubernetes version",
    ),
    (
        "Cl",
        t.resource(
            "EKS::Cluster",
            Name="second",
            RoleArn=t.att("ClusterRole", "Arn"),
            ResourcesVpcConfig={"SubnetIds": [t.ref("SubnetA"), t.ref("Public")]},
        ),
        "Subnets specified must be in at least two different AZs",
    ),
    (
        "Link2",
        t.resource(
            "FSx::DataRepositoryAssociation",
            FileSystemId=t.ref("FileSystem"),
            FileSystemPath="/runs/inside",
            DataRepositoryPath="s3://repository/other",
        ),
        "overlaps with",
    ),
    (
        "Addon",
        t.resource("EKS::Addon", ClusterName=t.ref("Cluster"), AddonName="nvidia-device-plugin"),
        "is not supported",
    ),
]


@pytest.mark.parametrize(("name", "bad", "reason"), BAD, ids=[reason[:30] for _, _, reason in BAD])
def test_what_linters_miss_aws_refuses(deployed: World, name: str, bad: dict[str, Any], reason: str) -> None:
    assert deployed.deploy("all", {**BASE, name: bad}) == "UPDATE_ROLLBACK_COMPLETE"
    assert reason in deployed.reasons("all", "CREATE_FAILED")[name]


def test_a_bucket_that_holds_something_stays(deployed: World) -> None:
    s3 = deployed.client("s3")
    bucket = {"B": t.resource("S3::Bucket", BucketName="full-bucket")}
    assert deployed.deploy("bucket", bucket) == "CREATE_COMPLETE"
    s3.put_object(Bucket="full-bucket", Key="x", Body=b"x")
    assert deployed.delete("bucket") == "DELETE_FAILED"
    assert "The bucket you tried to delete is not empty" in deployed.reasons("bucket", "DELETE_FAILED")["B"]
    s3.delete_object(Bucket="full-bucket", Key="x")
    assert deployed.delete("bucket") == "DELETE_COMPLETE"


def test_a_policy_against_plain_http_lets_the_loopback_in(deployed: World) -> None:
    """Obstacle 7: moto denied everything to everyone."""
    s3 = deployed.client("s3")
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": ["arn:aws:s3:::tls", "arn:aws:s3:::tls/*"],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            },
            {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::tls/*"},
        ],
    }
    resources = {
        "B": t.resource("S3::Bucket", BucketName="tls"),
        "P": t.resource("S3::BucketPolicy", Bucket=t.ref("B"), PolicyDocument=policy),
    }
    assert deployed.deploy("tls", resources) == "CREATE_COMPLETE"
    s3.put_object(Bucket="tls", Key="x", Body=b"x")
    with pytest.raises(ClientError, match="Forbidden"):
        s3.get_object(Bucket="tls", Key="x")
    s3.delete_object(Bucket="tls", Key="x")
    assert deployed.delete("tls") == "DELETE_COMPLETE"


# --- failures on demand


def test_throttled_calls_are_tried_again_until_they_pass(deployed: World) -> None:
    deployed.fail(kind="throttling", match="ec2:CreatePlacementGroup", times=2)
    more = {**BASE, "Second": t.resource("EC2::PlacementGroup", Strategy="spread")}
    assert deployed.deploy("all", more) == "UPDATE_COMPLETE"
    assert deployed.deploy("all", BASE) == "UPDATE_COMPLETE"


def test_calls_throttled_for_good_fail_with_rate_exceeded(deployed: World) -> None:
    deployed.fail(kind="throttling", match="logs:*")
    logs = deployed.aws
    import boto3
    from botocore.config import Config

    client = boto3.session.Session(
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE", aws_secret_access_key="local", region_name=logs.region
    ).client("logs", endpoint_url=logs.endpoint_url, config=Config(retries={"max_attempts": 1}))
    with pytest.raises(ClientError, match="Rate exceeded"):
        client.describe_log_groups()


def test_a_slow_creation_takes_longer(deployed: World) -> None:
    group = {"A": t.resource("Logs::LogGroup", LogGroupName="slow")}
    deployed.fail(kind="slow", match="AWS::Logs::LogGroup", extra_s=6000)
    began = time.monotonic()
    assert deployed.deploy("slow", group) == "CREATE_COMPLETE"
    assert time.monotonic() - began > 2.0
    deployed.delete("slow")


def test_a_stuck_interface_holds_subnet_and_group(world: World) -> None:
    world.fail(kind="stuck_interface", match="Created By Amazon FSx*", times=1)
    ec2 = world.client("ec2")
    resources = {**t.network(), "Fs": t.file_system()}
    assert world.deploy("stuck", resources) == "CREATE_COMPLETE"
    assert world.delete("stuck") == "DELETE_FAILED"
    reasons = world.reasons("stuck", "DELETE_FAILED")
    assert "has a dependent object" in reasons["Group"]
    assert "has dependencies and cannot be deleted" in reasons["SubnetA"]
    found = ec2.describe_network_interfaces(Filters=[{"Name": "status", "Values": ["available"]}])
    left = found["NetworkInterfaces"]
    assert len(left) == 1
    ec2.delete_network_interface(NetworkInterfaceId=left[0]["NetworkInterfaceId"])
    assert world.delete("stuck") == "DELETE_COMPLETE"


def test_a_function_in_the_vpc_delays_the_end_but_does_not_prevent_it(world: World) -> None:
    function = t.resource(
        "Lambda::Function",
        Runtime="python3.13",
        Handler="index.handler",
        Code={"ZipFile": "def handler(event, context): pass"},
        Role=t.att("Role", "Arn"),
        VpcConfig={"SubnetIds": [t.ref("SubnetA")], "SecurityGroupIds": [t.ref("Group")]},
    )
    role = t.resource("IAM::Role", AssumeRolePolicyDocument=t.NODE_POLICY)
    assert world.deploy("inside", {**t.network(), "Role": role, "Function": function}) == "CREATE_COMPLETE"
    mine = [{"Name": "description", "Values": ["AWS Lambda VPC ENI-*"]}]
    ec2 = world.client("ec2")
    assert len(ec2.describe_network_interfaces(Filters=mine)["NetworkInterfaces"]) == 1
    assert world.delete("inside") == "DELETE_COMPLETE", world.reasons("inside", "DELETE_FAILED")
    done = [logical for logical, status, _ in world.events("inside") if status == "DELETE_COMPLETE"]
    assert done.index("Function") < done.index("SubnetA")
    assert ec2.describe_network_interfaces(Filters=mine)["NetworkInterfaces"] == []


def test_a_service_may_leave_an_endpoint_in_the_vpc(world: World) -> None:
    world.fail(kind="service_endpoint", times=1)
    ec2 = world.client("ec2")
    assert world.deploy("guarded", t.network()) == "CREATE_COMPLETE"
    managed = [{"Name": "tag:GuardDutyManaged", "Values": ["true"]}]
    [endpoint] = ec2.describe_vpc_endpoints(Filters=managed)["VpcEndpoints"]
    assert world.delete("guarded") == "DELETE_FAILED"
    ec2.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])
    [group] = ec2.describe_security_groups(Filters=managed)["SecurityGroups"]
    ec2.delete_security_group(GroupId=group["GroupId"])
    assert world.delete("guarded") == "DELETE_COMPLETE"


def test_an_addon_that_needs_nodes_degrades_without_any(world: World) -> None:
    dns = t.resource("EKS::Addon", ClusterName=t.ref("Cluster"), AddonName="coredns")
    assert world.deploy("empty", {**t.network(), **t.cluster("empty"), "Dns": dns}) == "ROLLBACK_COMPLETE"
    assert "InsufficientNumberOfReplicas" in world.reasons("empty", "CREATE_FAILED")["Dns"]
    world.delete("empty")


def test_cloudtrail_answers_with_nothing_at_once(world: World) -> None:
    """Obstacle 13: a 500 here is tried again for half a minute."""
    assert world.client("cloudtrail").lookup_events()["Events"] == []


def test_what_is_not_emulated_is_refused_at_once(world: World) -> None:
    began = time.monotonic()
    with pytest.raises(ClientError, match="has not been implemented"):
        world.client("ec2").describe_verified_access_groups()
    assert time.monotonic() - began < 3.0
