"""Where moto loses a change or a deletion without a word: everything changes, and everything goes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ops.local.aws.testing import World
from ops.local.aws.testing import templates as t

pytestmark = pytest.mark.integration

MARK = [{"Key": "mark", "Value": "after"}]


def _policy(action: str) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]}


def _more() -> dict[str, Any]:
    role = t.resource("IAM::Role", AssumeRolePolicyDocument=t.NODE_POLICY)
    return {
        "RoleA": role,
        "RoleB": role,
        "Managed": t.resource(
            "IAM::ManagedPolicy", PolicyDocument=_policy("s3:GetObject"), Roles=[t.ref("RoleA")]
        ),
        "Profile": t.resource("IAM::InstanceProfile", Roles=[t.ref("RoleA")]),
        "Key": t.resource("KMS::Key", KeyPolicy={"Version": "2012-10-17", "Statement": []}, Description="before"),
        "Logs": t.resource("Logs::LogGroup", LogGroupName="obstacles", RetentionInDays=7),
        "Flow": t.resource(
            "EC2::FlowLog",
            ResourceId=t.ref("Vpc"),
            ResourceType="VPC",
            TrafficType="ALL",
            LogGroupName=t.ref("Logs"),
            DeliverLogsPermissionArn=t.att("RoleA", "Arn"),
        ),
        "Layer": t.resource("Lambda::LayerVersion", LayerName="layer", Content={"S3Bucket": "code", "S3Key": "x"}),
        "Function": t.resource(
            "Lambda::Function",
            FunctionName="called",
            Runtime="python3.13",
            Handler="index.handler",
            Code={"ZipFile": "def handler(event, context): pass"},
            Role=t.att("RoleA", "Arn"),
        ),
        "Permission": t.resource(
            "Lambda::Permission",
            FunctionName=t.ref("Function"),
            Action="lambda:InvokeFunction",
            Principal="events.amazonaws.com",
        ),
    }


BEFORE = {**t.network(), **_more()}


def _changed() -> dict[str, Any]:
    """The same resources with something else in each that is changed in place."""
    new: dict[str, dict[str, Any]] = {
        "Vpc": {"EnableDnsHostnames": False, "Tags": MARK},
        "SubnetB": {"MapPublicIpOnLaunch": True, "Tags": MARK},
        "Table": {"Tags": MARK},
        "Gateway": {"Tags": MARK},
        "Address": {"Tags": MARK},
        "Nat": {"Tags": MARK},
        "Route": {"GatewayId": t.ref("Gateway")},
        "GroupIn": {"Description": "after"},
        "Endpoint": {"RouteTableIds": [t.ref("Table"), t.ref("PublicTable")], "Tags": MARK},
        "Managed": {"PolicyDocument": _policy("s3:PutObject"), "Roles": [t.ref("RoleB")]},
        "Profile": {"Roles": [t.ref("RoleB")]},
        "Key": {"Description": "after", "Tags": MARK},
        "Logs": {"RetentionInDays": 30, "Tags": MARK},
    }
    changed = {
        name: {**body, "Properties": body["Properties"] | new.get(name, {})} for name, body in BEFORE.items()
    }
    del changed["Route"]["Properties"]["NatGatewayId"]
    return changed


def _ids(world: World) -> dict[str, str]:
    found = world.client("cloudformation").describe_stack_resources(StackName="obstacles")["StackResources"]
    return {r["LogicalResourceId"]: r["PhysicalResourceId"] for r in found}


def test_what_moto_does_not_change_or_delete_changes_in_place_and_goes(world: World) -> None:
    """Obstacles 11 and 12."""
    world.client("s3").create_bucket(Bucket="code")
    world.client("s3").put_object(Bucket="code", Key="x", Body=b"layer")
    assert world.deploy("obstacles", BEFORE) == "CREATE_COMPLETE", world.reasons("obstacles", "CREATE_FAILED")
    ids = _ids(world)
    assert world.deploy("obstacles", _changed()) == "UPDATE_COMPLETE", world.reasons("obstacles", "UPDATE_FAILED")
    assert _ids(world) == ids
    _check_changes(world, ids)
    vpc = {"Vpc": _changed()["Vpc"]}
    assert world.deploy("obstacles", vpc) == "UPDATE_COMPLETE", world.reasons("obstacles", "DELETE_FAILED")
    assert _left(world, ids) == {}
    assert world.delete("obstacles") == "DELETE_COMPLETE"


def _check_changes(world: World, ids: dict[str, str]) -> None:
    ec2, iam = world.client("ec2"), world.client("iam")
    names = ec2.describe_vpc_attribute(VpcId=ids["Vpc"], Attribute="enableDnsHostnames")["EnableDnsHostnames"]
    assert names == {"Value": False}
    [subnet] = ec2.describe_subnets(SubnetIds=[ids["SubnetB"]])["Subnets"]
    assert subnet["MapPublicIpOnLaunch"]
    [address] = ec2.describe_addresses(PublicIps=[ids["Address"]])["Addresses"]
    tagged = {ids[n] for n in ("Vpc", "SubnetB", "Table", "Gateway", "Nat", "Endpoint")} | {
        address["AllocationId"]
    }
    found = ec2.describe_tags(Filters=[{"Name": "key", "Values": ["mark"]}])["Tags"]
    assert {tag["ResourceId"] for tag in found} == tagged
    [table] = ec2.describe_route_tables(RouteTableIds=[ids["Table"]])["RouteTables"]
    default = [r for r in table["Routes"] if r.get("DestinationCidrBlock") == "0.0.0.0/0"]
    assert [(r.get("GatewayId"), r.get("NatGatewayId")) for r in default] == [(ids["Gateway"], None)]
    [group] = ec2.describe_security_groups(GroupIds=[ids["Group"]])["SecurityGroups"]
    pairs = [pair for permission in group["IpPermissions"] for pair in permission["UserIdGroupPairs"]]
    assert [pair["Description"] for pair in pairs] == ["after"]
    [endpoint] = ec2.describe_vpc_endpoints(VpcEndpointIds=[ids["Endpoint"]])["VpcEndpoints"]
    assert set(endpoint["RouteTableIds"]) == {ids["Table"], ids["PublicTable"]}
    policy = iam.get_policy(PolicyArn=ids["Managed"])["Policy"]
    version = iam.get_policy_version(PolicyArn=ids["Managed"], VersionId=policy["DefaultVersionId"])
    assert version["PolicyVersion"]["Document"]["Statement"][0]["Action"] == "s3:PutObject"
    roles = iam.list_entities_for_policy(PolicyArn=ids["Managed"])["PolicyRoles"]
    profile = iam.get_instance_profile(InstanceProfileName=ids["Profile"])["InstanceProfile"]
    assert [r["RoleName"] for r in (*roles, *profile["Roles"])] == [ids["RoleB"], ids["RoleB"]]
    kms = world.client("kms")
    assert kms.describe_key(KeyId=ids["Key"])["KeyMetadata"]["Description"] == "after"
    assert {"TagKey": "mark", "TagValue": "after"} in kms.list_resource_tags(KeyId=ids["Key"])["Tags"]
    [log_group] = world.client("logs").describe_log_groups(logGroupNamePrefix="obstacles")["logGroups"]
    assert log_group["retentionInDays"] == 30
    tags = world.client("logs").list_tags_for_resource(resourceArn=log_group["logGroupArn"])["tags"]
    assert tags["mark"] == "after"


def _left(world: World, ids: dict[str, str]) -> dict[str, Any]:
    """What of the stack's resources boto3 still sees, the VPC apart."""
    ec2, iam = world.client("ec2"), world.client("iam")
    mine = [{"Name": "vpc-id", "Values": [ids["Vpc"]]}]
    tables = ec2.describe_route_tables(Filters=mine)["RouteTables"]
    found = {
        "tables": [x for x in tables if not any(a.get("Main") for a in x["Associations"])],
        "gateways": ec2.describe_internet_gateways(InternetGatewayIds=[])["InternetGateways"],
        "endpoints": ec2.describe_vpc_endpoints(Filters=mine)["VpcEndpoints"],
        "nat": [n for n in ec2.describe_nat_gateways()["NatGateways"] if n["State"] != "deleted"],
        "addresses": ec2.describe_addresses()["Addresses"],
        "subnets": ec2.describe_subnets(Filters=mine)["Subnets"],
        "groups": [
            g for g in ec2.describe_security_groups(Filters=mine)["SecurityGroups"] if g["GroupName"] != "default"
        ],
        "flow logs": ec2.describe_flow_logs()["FlowLogs"],
        "policies": iam.list_policies(Scope="Local")["Policies"],
        "profiles": iam.list_instance_profiles()["InstanceProfiles"],
        "layers": world.client("lambda").list_layer_versions(LayerName="layer")["LayerVersions"],
        "functions": world.client("lambda").list_functions()["Functions"],
        "log groups": world.client("logs").describe_log_groups(logGroupNamePrefix="obstacles")["logGroups"],
        "keys": [] if _is_pending_deletion(world, ids["Key"]) else [ids["Key"]],
    }
    return {kind: things for kind, things in found.items() if things}


def _is_pending_deletion(world: World, key: str) -> bool:
    metadata = world.client("kms").describe_key(KeyId=key)["KeyMetadata"]
    return bool(metadata["KeyState"] == "PendingDeletion")


def test_a_permission_goes_while_its_function_stays(world: World) -> None:
    """Obstacle 11."""
    lambda_ = world.client("lambda")
    resources = {name: copy.deepcopy(BEFORE[name]) for name in ("RoleA", "Function", "Permission")}
    resources["Function"]["Properties"]["FunctionName"] = "alone"
    assert world.deploy("permitted", resources) == "CREATE_COMPLETE"
    policy = json.loads(lambda_.get_policy(FunctionName="alone")["Policy"])
    assert [s["Principal"]["Service"] for s in policy["Statement"]] == ["events.amazonaws.com"]
    del resources["Permission"]
    assert world.deploy("permitted", resources) == "UPDATE_COMPLETE"
    try:
        left = json.loads(lambda_.get_policy(FunctionName="alone")["Policy"])["Statement"]
    except ClientError:  # as AWS answers where there is none
        left = []
    assert left == []
    assert world.delete("permitted") == "DELETE_COMPLETE"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_template_in_a_bucket_is_found_by_its_address(world: World, host: str) -> None:
    """Obstacle 1: moto takes the address's first word for a bucket unless it says localhost."""
    s3, cfn = world.client("s3"), world.client("cloudformation")
    s3.create_bucket(Bucket="templates")
    body = {"Resources": {"A": t.resource("Logs::LogGroup", LogGroupName="from-bucket")}}
    s3.put_object(Bucket="templates", Key="a folder/t.json", Body=json.dumps(body).encode())
    endpoint = world.aws.endpoint_url.replace("127.0.0.1", host)
    arguments = {"StackName": "by-url", "ChangeSetName": "test", "ChangeSetType": "CREATE"}
    with pytest.raises(ClientError, match="S3 error"):
        cfn.create_change_set(**arguments, TemplateURL=f"{endpoint}/templates/not-there.json")
    cfn.create_change_set(**arguments, TemplateURL=f"{endpoint}/templates/a%20folder/t.json")
    cfn.execute_change_set(StackName="by-url", ChangeSetName="test")
    assert world.settle("by-url") == "CREATE_COMPLETE"
    assert world.delete("by-url") == "DELETE_COMPLETE"
    s3.delete_object(Bucket="templates", Key="a folder/t.json")
    s3.delete_bucket(Bucket="templates")
