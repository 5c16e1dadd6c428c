"""Instances of node groups: launched from the group's template with every interface, under EC2's limits."""

from __future__ import annotations

from typing import Any

from environments.instance_types import HUGE_PAGES_2MIB, INSTANCE_TYPES, InstanceType
from ops.local.aws.nodes import NodeSpec
from ops.local.aws.services import capacity, interfaces
from ops.local.aws.services.lifecycle import Document, Thing

IMAGE = "ami-0eksal2023nvidia00"
MEMORY_RESERVED_GIB = 4
TAINT_EFFECTS = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}


def living(region: str, cluster: str, group: str) -> list[Any]:
    """The group's instances that are pending or running, oldest first."""
    wanted = {"eks:cluster-name": cluster, "eks:nodegroup-name": group}
    return [
        instance
        for reservation in interfaces.ec2(region).reservations.values()
        for instance in reservation.instances
        if instance.state in ("pending", "running") and wanted.items() <= _tags(instance).items()
    ]


def _tags(instance: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in instance.get_tags()}


def launch(region: str, cluster: Any, group: Thing) -> None:
    """One more instance, or EC2's refusal."""
    backend, document, data = interfaces.ec2(region), group.document, group.hidden["template"]
    kind: str = group.hidden["type"]
    subnet = backend.get_subnet(_emptiest(region, document))
    capacity.check(region, kind, subnet.availability_zone, data)
    groups = _groups(cluster, data)
    tags = {
        **document["tags"],
        **_template_tags(data),
        "eks:cluster-name": document["clusterName"],
        "eks:nodegroup-name": document["nodegroupName"],
        f"kubernetes.io/cluster/{document['clusterName']}": "owned",
        "aws:autoscaling:groupName": document["resources"]["autoScalingGroups"][0]["name"],
    }
    reservation = backend.run_instances(
        data.get("ImageId") or IMAGE,
        1,
        None,
        [],
        instance_type=kind,
        is_instance_type_default=False,
        region_name=region,
        subnet_id=subnet.id,
        security_group_ids=groups,
        tags={"instance": tags},
        placement=subnet.availability_zone,
        instance_market_options=data.get("InstanceMarketOptions", {}).get("MarketType") or {},
    )
    instance = reservation.instances[0]
    instance.named_reservation = capacity.reservation_of(data)
    _more_interfaces(region, instance, subnet.id, groups, data)


def _emptiest(region: str, document: Document) -> str:
    here = living(region, document["clusterName"], document["nodegroupName"])
    used = [instance.subnet_id for instance in here]
    return str(min(document["subnets"], key=used.count))


def _groups(cluster: Any, data: Document) -> list[str]:
    """EKS adds the cluster's group only where the template names none."""
    named = data.get("SecurityGroupIds") or next(
        (i["Groups"] for i in data.get("NetworkInterfaces", []) if i.get("Groups")), None
    )
    return list(named or [cluster.document["resourcesVpcConfig"]["clusterSecurityGroupId"]])


def _template_tags(data: Document) -> dict[str, str]:
    specs = data.get("TagSpecifications", [])
    found = [s.get("Tags") or s.get("Tag") or [] for s in specs if s.get("ResourceType") == "instance"]
    return {tag["Key"]: tag["Value"] for tags in found for tag in tags}


def _more_interfaces(region: str, instance: Any, subnet: str, groups: list[str], data: Document) -> None:
    """Every interface of the template besides the primary one."""
    instance.extra_interfaces = [
        interfaces.make(region, subnet, groups, f"{i.get('InterfaceType', 'interface')} of {instance.id}")
        for i in data.get("NetworkInterfaces", [])[1:]
    ]


def terminate(region: str, instance: Any) -> None:
    """Ends the instance and its interfaces."""
    interfaces.ec2(region).terminate_instances([instance.id])


def release_interfaces(region: str, instance: Any) -> None:
    """What a terminated instance leaves of interfaces: none, unless one gets stuck by configuration."""
    interfaces.remove(region, [nic.id for nic in instance.nics.values()])
    interfaces.remove(region, getattr(instance, "extra_interfaces", []))


def node_spec(region: str, group: Thing, instance: Any) -> NodeSpec:
    """What the instance's kubelet registers."""
    document, data = group.document, group.hidden["template"]
    zone = interfaces.ec2(region).get_subnet(instance.subnet_id).availability_zone
    address = instance.private_ip
    dashed = address.replace(".", "-")
    suffix = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
    return NodeSpec(
        name=f"ip-{dashed}.{suffix}",
        labels={
            **document["labels"],
            "node.kubernetes.io/instance-type": group.hidden["type"],
            "topology.kubernetes.io/zone": zone,
            "topology.kubernetes.io/region": region,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "eks.amazonaws.com/nodegroup": document["nodegroupName"],
            "eks.amazonaws.com/capacityType": document["capacityType"],
        },
        taints=tuple(_taint(taint) for taint in document["taints"]),
        allocatable=_allocatable(group.hidden["type"], data),
        provider_id=f"aws:///{zone}/{instance.id}",
        address=address,
    )


def _taint(taint: Document) -> dict[str, str]:
    effect = TAINT_EFFECTS.get(taint["effect"], taint["effect"])
    return {"key": taint["key"], "value": taint.get("value", ""), "effect": effect}


def _allocatable(kind: str, data: Document) -> dict[str, str]:
    """From the instance table; EFA devices as many as the launch template really has."""
    entry: InstanceType | None = INSTANCE_TYPES.get(kind)
    if entry is None:
        return {"cpu": "4", "memory": "16Gi", "pods": "58", "ephemeral-storage": "100Gi"}
    efa = sum(1 for i in data.get("NetworkInterfaces", []) if i.get("InterfaceType") in ("efa", "efa-only"))
    quantities = {
        "cpu": str(entry.vcpus),
        "memory": f"{entry.memory_gib - MEMORY_RESERVED_GIB}Gi",
        "pods": str(entry.max_pods()),
        "ephemeral-storage": f"{entry.nvme_gb}G",
        "nvidia.com/gpu": str(entry.gpus),
    }
    # EFA's driver reserves huge pages, which training pods ask for.
    fast = {"vpc.amazonaws.com/efa": str(efa), "hugepages-2Mi": f"{2 * HUGE_PAGES_2MIB}Mi"}
    return {**quantities, **fast} if efa else quantities
