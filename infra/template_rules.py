"""What the finished templates must hold, each rule with the report that taught it.

cfn-lint, cdk-nag and CDK's validator see none of this (cdk-nag's EKS rules do not know `aws_eks_v2`). The rules
run at every synthesis, on what CloudFormation would get.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from infra.lustre_rules import LUSTRE_RULES
from infra.templates import Address, Templates
from k8s.rules import tolerates

TemplateRule = Callable[[Templates], Iterator[str]]
CONTROL_PLANE_LOGS = {"api", "audit", "authenticator", "controllerManager", "scheduler"}
OLDEST_CNI_FOR_EFA_ONLY = (1, 18, 5)
READ_AT_ONCE = {"INTELLIGENT_TIERING", "STANDARD_IA", "ONEZONE_IA", "GLACIER_IR"}
_USER_DATA_LIMIT = 16 * 1024
_INTOLERANT_ADDONS: dict[str, tuple[str, ...]] = {
    "eks-node-monitoring-agent": ("dcgmAgent",),
    "aws-secrets-store-csi-driver-provider": (),
}
"""And the section of their configuration where tolerations stand."""


class InvalidTemplateError(Exception):
    """A template that CloudFormation would take and that would not work. Carries every problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def check_templates(templates: Templates) -> None:
    """Raises InvalidTemplateError with every broken rule."""
    problems = [problem for rule in TEMPLATE_RULES for problem in rule(templates)]
    if problems:
        raise InvalidTemplateError(problems)


def _at(address: Address) -> str:
    return f"{address[0]}/{address[1]}"


def efa_interfaces_reach_each_other(templates: Templates) -> Iterator[str]:
    """Every EFA interface wears a group that allows all traffic to itself, in and out; egress to 0.0.0.0/0 does
    not cover EFA's transport (gardener-extension-provider-aws#1832, awsome#546, awsome#259)."""
    inward, outward = _self_rules(templates, "Ingress"), _self_rules(templates, "Egress")
    for address, template in templates.of_type("AWS::EC2::LaunchTemplate"):
        for number, interface in enumerate(_data(template).get("NetworkInterfaces", [])):
            groups = {templates.target(address[0], group) for group in interface.get("Groups", [])}
            if "efa" in interface.get("InterfaceType", "") and not groups & inward & outward:
                lacks = "ingress" if not groups & inward else "egress"
                yield (
                    f"{_at(address)}: interface {number} wears no group with all {lacks} to itself: "
                    "EFA would fail or fall back to TCP (gardener-extension-provider-aws#1832)"
                )


def _self_rules(templates: Templates, direction: str) -> set[Address | None]:
    """Groups with a rule of protocol -1 to themselves, as a resource or in the group."""
    peer = "SourceSecurityGroupId" if direction == "Ingress" else "DestinationSecurityGroupId"
    found: set[Address | None] = set()
    for (stack, _), rule in templates.of_type(f"AWS::EC2::SecurityGroup{direction}"):
        properties = rule["Properties"]
        group = templates.target(stack, properties["GroupId"])
        if str(properties["IpProtocol"]) == "-1" and group == templates.target(stack, properties.get(peer)):
            found.add(group)
    return found


def interfaces_are_where_ec2_takes_them(templates: Templates) -> Iterator[str]:
    """One primary, no place twice, device 0 or 1, gone with the instance (eksctl#7520, terraform-aws-eks#2182)."""
    for address, template in templates.of_type("AWS::EC2::LaunchTemplate"):
        interfaces = _data(template).get("NetworkInterfaces", [])
        places = [(interface["NetworkCardIndex"], interface["DeviceIndex"]) for interface in interfaces]
        if len(set(places)) != len(places):
            yield f"{_at(address)}: two interfaces in one place (eksctl#7520)"
        if interfaces and (places.count((0, 0)) != 1 or interfaces[0]["InterfaceType"] == "efa-only"):
            yield f"{_at(address)}: card 0 device 0 is not a primary interface (terraform-aws-eks#2654)"
        if any(device not in (0, 1) for _, device in places):
            yield f"{_at(address)}: device indexes count up with the cards (eksctl#7520)"
        if not all(interface.get("DeleteOnTermination") for interface in interfaces):
            yield f"{_at(address)}: interfaces outlive their instance (aws-k8s-tester#531)"


def security_groups_stand_in_one_place(templates: Templates) -> Iterator[str]:
    """EC2 refuses groups at both levels, and EKS refuses subnets in the template (eksctl#3465)."""
    for address, template in templates.of_type("AWS::EC2::LaunchTemplate"):
        data = _data(template)
        interfaces = data.get("NetworkInterfaces", [])
        if interfaces and (data.get("SecurityGroupIds") or data.get("SecurityGroups")):
            yield f"{_at(address)}: security groups beside those of the interfaces (eksctl#3465)"
        for number, interface in enumerate(interfaces):
            if not interface.get("Groups"):
                yield (
                    f"{_at(address)}: interface {number} wears no security group: EC2 gives it the VPC's default, "
                    "which reaches neither the cluster nor the file system (EC2 API, RunInstances)"
                )
        if any("SubnetId" in interface for interface in interfaces):
            yield f"{_at(address)}: a subnet in the template, which EKS refuses (EKS guide, launch templates)"


def nodes_follow_their_template(templates: Templates) -> Iterator[str]:
    """What EKS refuses beside a launch template, and IMDSv2 everywhere (EKS guide, launch templates)."""
    for address, group in templates.of_type("AWS::EKS::Nodegroup"):
        for name in ("DiskSize", "RemoteAccess", "InstanceTypes"):
            if name in group["Properties"]:
                yield f"{_at(address)}: {name} beside a launch template, which EKS refuses"
        if "AmiType" not in group["Properties"]:
            yield f"{_at(address)}: no AmiType: the default for GPU types is an image that has ended"
    for address, template in templates.of_type("AWS::EC2::LaunchTemplate"):
        if _data(template).get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield f"{_at(address)}: instance metadata without IMDSv2"
        if len(json.dumps(_data(template).get("UserData", ""))) > _USER_DATA_LIMIT:
            yield f"{_at(address)}: user data of more than 16 KiB"


def capacity_is_bought_as_it_is_asked(templates: Templates) -> Iterator[str]:
    """No spot; a block in template and group alike, in one zone (EKS guide, capacity-blocks-mng)."""
    markets = {
        address: _data(template).get("InstanceMarketOptions", {}).get("MarketType")
        for address, template in templates.of_type("AWS::EC2::LaunchTemplate")
    }
    for address, group in templates.of_type("AWS::EKS::Nodegroup"):
        properties = group["Properties"]
        template = templates.target(address[0], properties["LaunchTemplate"]["Id"])
        in_block = properties.get("CapacityType") == "CAPACITY_BLOCK"
        market = markets.get(template) if template else None
        if properties.get("CapacityType") == "SPOT" or market == "spot":
            yield f"{_at(address)}: spot: a gang of nodes ends with its first interruption"
        if in_block != (market == "capacity-block"):
            yield f"{_at(address)}: group and launch template do not agree about the Capacity Block"
        if address[0] == "capacity" and len(properties["Subnets"]) != 1:
            yield f"{_at(address)}: GPU nodes in more than one subnet (eksctl#8208)"


def cluster_is_closed_and_heard(templates: Templates) -> Iterator[str]:
    """cdk-nag's EKS1 and EKS2 for `aws_eks_v2`, and what else EKS leaves open by default."""
    for address, cluster in templates.of_type("AWS::EKS::Cluster"):
        properties = cluster["Properties"]
        network = properties["ResourcesVpcConfig"]
        logs = properties.get("Logging", {}).get("ClusterLogging", {}).get("EnabledTypes", [])
        missing = CONTROL_PLANE_LOGS - {entry["Type"] for entry in logs}
        if missing:
            yield f"{_at(address)}: control-plane logs off: {', '.join(sorted(missing))} (AwsSolutions-EKS2)"
        if not network.get("EndpointPrivateAccess"):
            yield f"{_at(address)}: nodes would reach the API from outside only (AwsSolutions-EKS1)"
        if network.get("EndpointPublicAccess") and network.get("PublicAccessCidrs") == []:
            yield f"{_at(address)}: a public endpoint without any address (AwsSolutions-EKS1)"
        if len(network["SubnetIds"]) < 2:
            yield f"{_at(address)}: one subnet; EKS wants two zones (eksctl#5107)"
        if not any("secrets" in entry["Resources"] for entry in properties.get("EncryptionConfig", [])):
            yield f"{_at(address)}: secrets without a key of ours"
        if properties.get("ComputeConfig", {}).get("Enabled"):
            yield f"{_at(address)}: Auto Mode, whose nodes device plug-ins leave out (eks-charts#1358)"
        access = properties.get("AccessConfig", {})
        if access.get("AuthenticationMode") != "API" or access.get("BootstrapClusterCreatorAdminPermissions"):
            yield f"{_at(address)}: people get in otherwise than by access entries (EKS guide)"


def addons_are_pinned_and_have_rights(templates: Templates) -> Iterator[str]:
    """A version each; Pod Identity on the add-on and after the agent, or its pods start without rights
    (fsx-csi#372); the CNI enforces policies and knows efa-only."""
    addons = {resource["Properties"]["AddonName"]: (address, resource) for address, resource in _addons(templates)}
    agent = addons.get("eks-pod-identity-agent")
    for name, (address, addon) in addons.items():
        properties = addon["Properties"]
        if not properties.get("AddonVersion"):
            yield f"{_at(address)}: {name} without a version"
        depends = addon.get("DependsOn", [])
        if properties.get("PodIdentityAssociations") and (not agent or agent[0][1] not in depends):
            yield f"{_at(address)}: {name} may start before the Pod Identity agent (fsx-csi#372)"
    if "vpc-cni" in addons:
        address, cni = addons["vpc-cni"]
        configuration = json.loads(cni["Properties"].get("ConfigurationValues") or "{}")
        if configuration.get("enableNetworkPolicy") != "true":
            yield f"{_at(address)}: network policies are not enforced (EKS guide, cni-network-policy)"
        if _version(cni["Properties"].get("AddonVersion") or "v0") < OLDEST_CNI_FOR_EFA_ONLY:
            yield f"{_at(address)}: this CNI does not know efa-only interfaces (amazon-vpc-cni-k8s 1.18.5)"


def addon_daemons_tolerate_our_taint(templates: Templates) -> Iterator[str]:
    """Add-ons whose DaemonSets do not tolerate GPU taints by themselves: `DESIRED 0` on every GPU node, and so no
    health checks and no secrets there (aws-efa-eks#3, nebari#3074)."""
    for address, addon in _addons(templates):
        name = addon["Properties"]["AddonName"]
        if name not in _INTOLERANT_ADDONS:
            continue
        configuration = json.loads(addon["Properties"].get("ConfigurationValues") or "{}")
        for section in _INTOLERANT_ADDONS[name]:
            configuration = configuration.get(section, {})
        if not any(tolerates(item) for item in configuration.get("tolerations", [])):
            yield f"{_at(address)}: {name} does not tolerate our GPU taint (aws-efa-eks#3)"


def pods_roles_take_session_tags(templates: Templates) -> Iterator[str]:
    """Pod Identity tags its sessions; a role that does not allow it is refused to the pod (fsx-csi#372)."""
    for address, role in templates.of_type("AWS::IAM::Role"):
        for statement in role["Properties"]["AssumeRolePolicyDocument"]["Statement"]:
            ours = statement.get("Principal", {}).get("Service") == "pods.eks.amazonaws.com"
            if ours and not {"sts:AssumeRole", "sts:TagSession"} <= set(_listed(statement["Action"])):
                yield f"{_at(address)}: Pod Identity without sts:TagSession (fsx-csi#372)"


def archive_stays_readable(templates: Templates) -> Iterator[str]:
    """Versions, encryption and TLS; no class that has to be thawed, which neither FSx nor a resumed run can wait
    for; and an end for what nobody needs any more (Lustre guide, data repositories)."""
    for address, bucket in templates.of_type("AWS::S3::Bucket"):
        properties = bucket["Properties"]
        rules = properties.get("LifecycleConfiguration", {}).get("Rules", [])
        classes = {item["StorageClass"] for rule in rules for item in rule.get("Transitions", [])}
        if properties.get("VersioningConfiguration", {}).get("Status") != "Enabled":
            yield f"{_at(address)}: not versioned: what is overwritten is lost"
        if "BucketEncryption" not in properties:
            yield f"{_at(address)}: not encrypted"
        if slow := classes - READ_AT_ONCE:
            yield f"{_at(address)}: objects go to {', '.join(sorted(slow))}, which cannot be read at once"
        if not any("NoncurrentVersionExpiration" in rule for rule in rules):
            yield f"{_at(address)}: old versions never end"
        if not any("AbortIncompleteMultipartUpload" in rule for rule in rules):
            yield f"{_at(address)}: uploads that were broken off never end"
        if not any(_denies_plain_text(templates, address, policy) for policy in _bucket_policies(templates)):
            yield f"{_at(address)}: takes requests without TLS"


def _bucket_policies(templates: Templates) -> list[tuple[Address, dict[str, Any]]]:
    return list(templates.of_type("AWS::S3::BucketPolicy"))


def _denies_plain_text(templates: Templates, bucket: Address, policy: tuple[Address, dict[str, Any]]) -> bool:
    (stack, _), resource = policy
    plain = {"Bool": {"aws:SecureTransport": "false"}}
    return templates.target(stack, resource["Properties"]["Bucket"]) == bucket and any(
        statement["Effect"] == "Deny" and statement.get("Condition") == plain
        for statement in resource["Properties"]["PolicyDocument"]["Statement"]
    )


def what_outlives_is_kept(templates: Templates) -> Iterator[str]:
    """Bucket and registry stay when their stack goes; a replaced file system stays too."""
    kept = {"AWS::S3::Bucket": "DeletionPolicy", "AWS::ECR::Repository": "DeletionPolicy"}
    kept["AWS::FSx::FileSystem"] = "UpdateReplacePolicy"
    for kind, policy in kept.items():
        for address, resource in templates.of_type(kind):
            if resource.get(policy) != "Retain":
                yield f"{_at(address)}: {policy} is not Retain"


def logs_end_with_their_stack(templates: Templates) -> Iterator[str]:
    """A group without an end costs for ever, and one that stays is found by nobody (CDK's default)."""
    for address, group in templates.of_type("AWS::Logs::LogGroup"):
        if group.get("DeletionPolicy") != "Delete" or not group["Properties"].get("RetentionInDays"):
            yield f"{_at(address)}: a log group that outlives its stack, or keeps everything"


def custom_resources_are_kubectl_only(templates: Templates) -> Iterator[str]:
    """Every other custom resource is a Lambda that can hold up a deletion (GCO#43)."""
    for address, resource in templates.resources():
        kind = resource["Type"]
        custom = kind.startswith("Custom::") or kind == "AWS::CloudFormation::CustomResource"
        if custom and kind != "Custom::AWSCDK-EKS-KubernetesResource":
            yield f"{_at(address)}: custom resource {kind}"


def _data(template: dict[str, Any]) -> dict[str, Any]:
    data: dict[str, Any] = template["Properties"]["LaunchTemplateData"]
    return data


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _addons(templates: Templates) -> Iterator[tuple[Address, dict[str, Any]]]:
    return templates.of_type("AWS::EKS::Addon")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.lstrip("v").split("-")[0].split("."))


TEMPLATE_RULES: tuple[TemplateRule, ...] = (
    efa_interfaces_reach_each_other,
    interfaces_are_where_ec2_takes_them,
    security_groups_stand_in_one_place,
    nodes_follow_their_template,
    capacity_is_bought_as_it_is_asked,
    cluster_is_closed_and_heard,
    addons_are_pinned_and_have_rights,
    addon_daemons_tolerate_our_taint,
    pods_roles_take_session_tags,
    archive_stays_readable,
    what_outlives_is_kept,
    logs_end_with_their_stack,
    custom_resources_are_kubectl_only,
    *LUSTRE_RULES,
)
