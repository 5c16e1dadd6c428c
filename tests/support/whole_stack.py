"""A stack with everything that an environment is made of, and what is left of it afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ops.local.aws.testing import World
from ops.local.aws.testing import templates as t


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
