"""What AWS refuses, in its words, and what fails on demand as it does there."""

from __future__ import annotations

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from whole_stack import BASE

from ops.local.aws.testing import World
from ops.local.aws.testing import templates as t

pytestmark = pytest.mark.integration


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
    assert time.monotonic() - began < 10.0
