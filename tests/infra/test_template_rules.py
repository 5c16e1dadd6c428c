"""Each template rule, right and wrong: small templates that people have really written."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from infra.template_rules import TEMPLATE_RULES, InvalidTemplateError, check_templates
from infra.templates import Templates
from k8s.placement import DAEMON_TOLERATIONS

pytestmark = pytest.mark.unit


def ref(name: str) -> dict[str, str]:
    return {"Ref": name}


def imported(name: str) -> dict[str, str]:
    return {"Fn::ImportValue": f"e-network:{name}"}


def resource(kind: str, *, depends: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"Type": f"AWS::{kind}", "Properties": properties}
    return found | ({"DependsOn": depends} if depends else {})


def everything_open(group: dict[str, str], peer: dict[str, str], direction: str) -> dict[str, Any]:
    side = "SourceSecurityGroupId" if direction == "Ingress" else "DestinationSecurityGroupId"
    found = resource(f"EC2::SecurityGroup{direction}", GroupId=group, IpProtocol="-1")
    found["Properties"][side] = peer
    return found


def ports(low: int, high: int, peer: dict[str, str]) -> dict[str, Any]:
    return resource(
        "EC2::SecurityGroupIngress",
        GroupId=ref("Lustre"),
        IpProtocol="tcp",
        FromPort=low,
        ToPort=high,
        SourceSecurityGroupId=peer,
    )


def interface(card: int, device: int, kind: str) -> dict[str, Any]:
    return {
        "NetworkCardIndex": card,
        "DeviceIndex": device,
        "InterfaceType": kind,
        "Groups": [imported("Cluster"), imported("Efa")],
        "DeleteOnTermination": True,
    }


SG_RULES = ["In988", "In1018", "ClientsIn988", "ClientsIn1018"]
NETWORK = {
    "Resources": {
        "Subnet": resource("EC2::Subnet"),
        "Efa": resource("EC2::SecurityGroup"),
        "Bare": resource("EC2::SecurityGroup"),
        "Clients": resource("EC2::SecurityGroup"),
        "EfaIn": everything_open(ref("Efa"), ref("Efa"), "Ingress"),
        "EfaOut": everything_open(ref("Efa"), ref("Efa"), "Egress"),
    },
    "Outputs": {
        name: {"Value": ref(name), "Export": {"Name": f"e-network:{name}"}}
        for name in ("Subnet", "Efa", "Bare", "Clients")
    },
}
STORAGE = {
    "Resources": {
        "Lustre": resource("EC2::SecurityGroup"),
        "In988": ports(988, 988, ref("Lustre")),
        "In1018": ports(1018, 1023, ref("Lustre")),
        "ClientsIn988": ports(988, 988, imported("Clients")),
        "ClientsIn1018": ports(1018, 1023, imported("Clients")),
        "Fs": {
            **resource(
                "FSx::FileSystem",
                depends=SG_RULES,
                SubnetIds=[imported("Subnet")],
                SecurityGroupIds=[ref("Lustre")],
                LustreConfiguration={"DeploymentType": "PERSISTENT_2"},
            ),
            "UpdateReplacePolicy": "Retain",
        },
        "Link": resource("FSx::DataRepositoryAssociation", FileSystemId=ref("Fs")),
    }
}
ALL_LOGS = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
CLUSTER = {
    "Resources": {
        "Cluster": resource(
            "EKS::Cluster",
            ResourcesVpcConfig={"SubnetIds": ["a", "b"], "EndpointPrivateAccess": True},
            Logging={"ClusterLogging": {"EnabledTypes": [{"Type": kind} for kind in ALL_LOGS]}},
            EncryptionConfig=[{"Resources": ["secrets"]}],
            AccessConfig={"AuthenticationMode": "API"},
        ),
        "Agent": resource("EKS::Addon", AddonName="eks-pod-identity-agent", AddonVersion="v1.3.10"),
        "Cni": resource(
            "EKS::Addon",
            depends=["Agent"],
            AddonName="vpc-cni",
            AddonVersion="v1.22.4-eksbuild.3",
            ConfigurationValues='{"enableNetworkPolicy": "true"}',
            PodIdentityAssociations=[{"RoleArn": "r", "ServiceAccount": "aws-node"}],
        ),
        "Monitor": resource(
            "EKS::Addon",
            AddonName="eks-node-monitoring-agent",
            AddonVersion="v1.7.0-eksbuild.1",
            ConfigurationValues=json.dumps({"dcgmAgent": {"tolerations": DAEMON_TOLERATIONS}}),
        ),
        "CniRole": resource(
            "IAM::Role",
            AssumeRolePolicyDocument={
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"Service": "pods.eks.amazonaws.com"},
                        "Action": ["sts:AssumeRole", "sts:TagSession"],
                    }
                ]
            },
        ),
    }
}
CAPACITY = {
    "Resources": {
        "Template": resource(
            "EC2::LaunchTemplate",
            LaunchTemplateData={
                "NetworkInterfaces": [
                    interface(0, 0, "interface"),
                    interface(0, 1, "efa-only"),
                    interface(1, 0, "efa-only"),
                ],
                "MetadataOptions": {"HttpTokens": "required"},
            },
        ),
        "Group": resource(
            "EKS::Nodegroup",
            AmiType="AL2023_x86_64_NVIDIA",
            CapacityType="ON_DEMAND",
            Subnets=[imported("Subnet")],
            LaunchTemplate={"Id": ref("Template")},
        ),
    }
}
ARCHIVE = {
    "Resources": {
        "Bucket": {
            **resource(
                "S3::Bucket",
                VersioningConfiguration={"Status": "Enabled"},
                BucketEncryption={"ServerSideEncryptionConfiguration": []},
                LifecycleConfiguration={
                    "Rules": [
                        {
                            "Transitions": [{"StorageClass": "INTELLIGENT_TIERING", "TransitionInDays": 0}],
                            "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
                            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
                        }
                    ]
                },
            ),
            "DeletionPolicy": "Retain",
        },
        "Policy": resource(
            "S3::BucketPolicy",
            Bucket=ref("Bucket"),
            PolicyDocument={
                "Statement": [{"Effect": "Deny", "Condition": {"Bool": {"aws:SecureTransport": "false"}}}]
            },
        ),
    }
}
RIGHT = {"archive": ARCHIVE, "network": NETWORK, "storage": STORAGE, "cluster": CLUSTER, "capacity": CAPACITY}
Change = Callable[[dict[str, Any]], None]


def changed(change: Change) -> list[str]:
    """Problems of the right templates after one change."""
    templates = copy.deepcopy(RIGHT)
    change({kind: template["Resources"] for kind, template in templates.items()})
    return [problem for rule in TEMPLATE_RULES for problem in rule(Templates(templates))]


def launch(resources: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = resources["capacity"]["Template"]["Properties"]["LaunchTemplateData"]
    return data


def group(resources: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = resources["capacity"]["Group"]["Properties"]
    return properties


def lustre(resources: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = resources["storage"]["Fs"]["Properties"]
    return properties


def control_plane(resources: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = resources["cluster"]["Cluster"]["Properties"]
    return properties


def cni(resources: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = resources["cluster"]["Cni"]["Properties"]
    return properties


def bucket(resources: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = resources["archive"]["Bucket"]["Properties"]
    return properties


def lifecycle(resources: dict[str, Any]) -> dict[str, Any]:
    rule: dict[str, Any] = bucket(resources)["LifecycleConfiguration"]["Rules"][0]
    return rule


def intolerant_monitor(r: dict[str, Any]) -> None:
    present = [{"key": "nvidia.com/gpu", "operator": "Equal", "value": "present"}]
    values = json.dumps({"dcgmAgent": {"tolerations": present}})
    r["cluster"]["Monitor"]["Properties"]["ConfigurationValues"] = values


def no_session_tags(r: dict[str, Any]) -> None:
    document = r["cluster"]["CniRole"]["Properties"]["AssumeRolePolicyDocument"]
    document["Statement"][0]["Action"] = "sts:AssumeRole"


def open_to_the_world(r: dict[str, Any]) -> None:
    r["network"]["EfaOut"] = resource(
        "EC2::SecurityGroupEgress", GroupId=ref("Efa"), IpProtocol="-1", CidrIp="0.0.0.0/0"
    )


def only_bare_group(r: dict[str, Any]) -> None:
    launch(r)["NetworkInterfaces"][2]["Groups"] = [imported("Bare")]


def rule_to_another_group(r: dict[str, Any]) -> None:
    r["network"]["EfaOut"]["Properties"]["DestinationSecurityGroupId"] = ref("Bare")


WRONG: list[tuple[str, Change, str]] = [
    ("egress to the world only", open_to_the_world, "all egress to itself"),
    ("no ingress from itself", lambda r: r["network"].pop("EfaIn"), "all ingress to itself"),
    ("a rule to another group", rule_to_another_group, "all egress to itself"),
    ("one interface with a bare group", only_bare_group, "interface 2 wears no group"),
    (
        "the first interface without groups",
        lambda r: launch(r)["NetworkInterfaces"][0].pop("Groups"),
        "the VPC's default",
    ),
    ("indexes that count up", lambda r: launch(r)["NetworkInterfaces"][2].update(DeviceIndex=2), "count up"),
    ("a place twice", lambda r: launch(r)["NetworkInterfaces"].append(interface(1, 0, "efa-only")), "one place"),
    ("no primary", lambda r: launch(r)["NetworkInterfaces"].pop(0), "not a primary interface"),
    (
        "efa-only as primary",
        lambda r: launch(r)["NetworkInterfaces"][0].update(InterfaceType="efa-only"),
        "primary",
    ),
    ("left behind", lambda r: launch(r)["NetworkInterfaces"][1].update(DeleteOnTermination=False), "outlive"),
    ("groups at both levels", lambda r: launch(r).update(SecurityGroupIds=["sg"]), "eksctl#3465"),
    (
        "a subnet in the template",
        lambda r: launch(r)["NetworkInterfaces"][0].update(SubnetId="s"),
        "subnet in the",
    ),
    ("no IMDSv2", lambda r: launch(r).pop("MetadataOptions"), "IMDSv2"),
    ("long user data", lambda r: launch(r).update(UserData="x" * 17000), "16 KiB"),
    ("disk size beside template", lambda r: group(r).update(DiskSize=100), "DiskSize beside"),
    ("instance types twice", lambda r: group(r).update(InstanceTypes=["p5.48xlarge"]), "InstanceTypes beside"),
    ("default image", lambda r: group(r).pop("AmiType"), "no AmiType"),
    ("spot", lambda r: group(r).update(CapacityType="SPOT"), "spot"),
    ("half a block", lambda r: group(r).update(CapacityType="CAPACITY_BLOCK"), "do not agree"),
    ("two subnets", lambda r: group(r)["Subnets"].append(imported("Efa")), "more than one subnet"),
    ("file system elsewhere", lambda r: lustre(r).update(SubnetIds=["subnet-1"]), "fsx-csi#120"),
    ("race with the rules", lambda r: r["storage"]["Fs"]["DependsOn"].remove("In988"), "fsx-csi#32"),
    ("988 only", lambda r: r["storage"]["In1018"]["Properties"].update(FromPort=1021), "1018-1023"),
    ("clients shut out", lambda r: r["storage"].pop("ClientsIn988"), "for itself and its clients"),
    ("EFA with ports", lambda r: lustre(r)["LustreConfiguration"].update(EfaEnabled=True), "all traffic"),
    (
        "the older link",
        lambda r: lustre(r)["LustreConfiguration"].update(ImportPath="s3://b"),
        "ImportPath beside",
    ),
    ("backups", lambda r: lustre(r)["LustreConfiguration"].update(AutomaticBackupRetentionDays=7), "backups"),
    ("replaced and lost", lambda r: r["storage"]["Fs"].pop("UpdateReplacePolicy"), "not Retain"),
    ("bucket goes", lambda r: r["archive"]["Bucket"].pop("DeletionPolicy"), "not Retain"),
    ("no versions", lambda r: bucket(r).pop("VersioningConfiguration"), "not versioned"),
    ("plain objects", lambda r: bucket(r).pop("BucketEncryption"), "not encrypted"),
    ("into the ice", lambda r: lifecycle(r)["Transitions"][0].update(StorageClass="DEEP_ARCHIVE"), "DEEP_ARCHIVE"),
    ("versions for ever", lambda r: lifecycle(r).pop("NoncurrentVersionExpiration"), "old versions never end"),
    ("uploads for ever", lambda r: lifecycle(r).pop("AbortIncompleteMultipartUpload"), "broken off never end"),
    ("plain text", lambda r: r["archive"].pop("Policy"), "without TLS"),
    (
        "eks-charts#1358: Auto Mode",
        lambda r: control_plane(r).update(ComputeConfig={"Enabled": True}),
        "Auto Mode",
    ),
    ("nebari#3074: health checks shut out", intolerant_monitor, "does not tolerate our GPU taint"),
    ("nothing tolerated", lambda r: r["cluster"]["Monitor"]["Properties"].pop("ConfigurationValues"), "tolerate"),
    ("fsx-csi#372: no session tags", no_session_tags, "without sts:TagSession"),
    (
        "logs that stay",
        lambda r: r["network"].update(L=resource("Logs::LogGroup", RetentionInDays=30)),
        "log group",
    ),
    ("deaf control plane", lambda r: control_plane(r).pop("Logging"), "EKS2"),
    ("from outside only", lambda r: control_plane(r)["ResourcesVpcConfig"].pop("EndpointPrivateAccess"), "EKS1"),
    ("one zone", lambda r: control_plane(r)["ResourcesVpcConfig"].update(SubnetIds=["a"]), "two zones"),
    ("plain secrets", lambda r: control_plane(r).pop("EncryptionConfig"), "without a key"),
    (
        "aws-auth",
        lambda r: control_plane(r).update(AccessConfig={"AuthenticationMode": "CONFIG_MAP"}),
        "access entries",
    ),
    ("whatever version", lambda r: cni(r).pop("AddonVersion"), "without a version"),
    ("before the agent", lambda r: r["cluster"]["Cni"].pop("DependsOn"), "before the Pod Identity agent"),
    ("policies ignored", lambda r: cni(r).pop("ConfigurationValues"), "not enforced"),
    ("an old CNI", lambda r: cni(r).update(AddonVersion="v1.18.3-eksbuild.3"), "efa-only"),
    (
        "another Lambda",
        lambda r: r["network"].update(C={"Type": "Custom::S3AutoDelete", "Properties": {}}),
        "custom",
    ),
]


def test_the_right_templates_are_right() -> None:
    check_templates(Templates(copy.deepcopy(RIGHT)))


@pytest.mark.parametrize(("change", "message"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_one_wrong_thing_is_named(change: Change, message: str) -> None:
    problems = changed(change)
    assert any(message in problem for problem in problems), problems


def test_every_rule_has_a_wrong_case() -> None:
    silent = []
    for rule in TEMPLATE_RULES:
        found = False
        for _, change, _ in WRONG:
            templates = copy.deepcopy(RIGHT)
            change({kind: template["Resources"] for kind, template in templates.items()})
            found = found or bool(list(rule(Templates(templates))))
        if not found:
            silent.append(rule.__name__)
    assert silent == []


def test_all_problems_come_out_together() -> None:
    templates = copy.deepcopy(RIGHT)
    del templates["cluster"]["Resources"]["Cluster"]["Properties"]["Logging"]
    del templates["network"]["Resources"]["EfaOut"]
    with pytest.raises(InvalidTemplateError) as error:
        check_templates(Templates(templates))
    assert len(error.value.problems) == 3


def test_a_self_rule_counts_wherever_it_stands_and_whatever_else_there_is() -> None:
    """A public checker gave up at the first rule to 0.0.0.0/0, before it saw the right one."""

    def change(r: dict[str, Any]) -> None:
        first = {
            "World": resource("EC2::SecurityGroupEgress", GroupId=ref("Efa"), IpProtocol="-1", CidrIp="0.0.0.0/0")
        }
        r["network"].update({**first, **r["network"]})

    assert changed(change) == []


def test_references_are_followed_through_exports() -> None:
    templates = Templates(copy.deepcopy(RIGHT))
    assert templates.target("capacity", imported("Efa")) == ("network", "Efa")
    assert templates.target("cluster", {"Fn::GetAtt": ["Cluster", "Arn"]}) == ("cluster", "Cluster")
    assert templates.target("cluster", {"Fn::GetAtt": "Cluster.Arn"}) == ("cluster", "Cluster")
    assert templates.target("cluster", "sg-1") is None
    assert templates.target("cluster", {"Fn::ImportValue": "nobody's"}) is None
    assert templates.imports() == {f"e-network:{name}" for name in ("Cluster", "Efa", "Subnet", "Clients")}
