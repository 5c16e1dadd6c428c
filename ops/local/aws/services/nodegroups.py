"""Node groups keep as many instances as they are asked for, and the local Kubernetes as many nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from moto.core.exceptions import ServiceException

from ops.local.aws import nodes
from ops.local.aws.cloudformation.state import ACCOUNT, now
from ops.local.aws.refusals import AwsError
from ops.local.aws.services import eks_rules as rules
from ops.local.aws.services import interface_plan, interfaces
from ops.local.aws.services.eks_store import Cluster, all_clusters
from ops.local.aws.services.instances import launch, living, node_spec, terminate
from ops.local.aws.services.lifecycle import GONE, Document, Thing
from ops.local.aws.settings import LIVE

JOIN_S = 45
RETRY_S = 60
NEEDS_NODES = ("coredns", "aws-ebs-csi-driver", "aws-efs-csi-driver", "aws-fsx-csi-driver", "snapshot-controller")


def api_of(kubeconfig: Path) -> tuple[str, str]:
    """The address and the authority (base64) of the cluster in a kubeconfig."""
    cluster = yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]
    return str(cluster["server"]), str(cluster.get("certificate-authority-data", ""))


def made(cluster: Cluster, asked: Document, region: str) -> Thing:
    """A new node group as asked, or EKS's refusal."""
    name, cluster_name = asked["nodegroupName"], cluster.document["name"]
    scaling = {"minSize": 1, "maxSize": 2, "desiredSize": 1, **(asked.get("scalingConfig") or {})}
    rules.check_scaling(scaling)
    template = asked.get("launchTemplate") or {}
    data = _template(template, region)
    if template:
        rules.check_nodegroup_template(asked, data)
    rules.check_capacity_block(asked, data)
    types: list[str] = asked.get("instanceTypes") or (
        [data["InstanceType"]] if data.get("InstanceType") else ["t3.medium"]
    )
    try:
        interface_plan.check(data, types[0])
    except AwsError as error:
        raise rules.InvalidRequestError(error.message) from error
    identity = str(uuid4())
    document = {
        "nodegroupName": name,
        "nodegroupArn": f"arn:aws:eks:{region}:{ACCOUNT}:nodegroup/{cluster_name}/{name}/{identity}",
        "clusterName": cluster_name,
        "version": asked.get("version") or cluster.document["version"],
        "releaseVersion": asked.get("releaseVersion") or f"{cluster.document['version']}.0-20261101",
        "createdAt": now(),
        "modifiedAt": now(),
        "capacityType": asked.get("capacityType") or "ON_DEMAND",
        "scalingConfig": scaling,
        "instanceTypes": None if data.get("InstanceType") else types,
        "subnets": list(asked["subnets"]),
        "amiType": asked.get("amiType") or "AL2023_x86_64_STANDARD",
        "nodeRole": asked["nodeRole"],
        "labels": dict(asked.get("labels") or {}),
        "taints": list(asked.get("taints") or []),
        "resources": {"autoScalingGroups": [{"name": f"eks-{name}-{identity}"}]},
        "diskSize": None if template else asked.get("diskSize") or 20,
        "health": {"issues": []},
        "updateConfig": asked.get("updateConfig") or {"maxUnavailable": 1},
        "nodeRepairConfig": asked.get("nodeRepairConfig"),
        "launchTemplate": _named(template, region) if template else None,
        "tags": dict(asked.get("tags") or {}),
    }
    hidden = {"creating": True, "type": types[0], "template": data, "region": region, "joined": {}}
    return Thing({k: v for k, v in document.items() if v is not None}, "CREATING", hidden=hidden)


def _template(spec: Document, region: str) -> Document:
    if not spec:
        return {}
    backend = interfaces.ec2(region)
    key = {"template_ids": [spec["id"]]} if spec.get("id") else {"template_names": [spec["name"]]}
    try:
        template = backend.describe_launch_templates(**key)[0]
        return dict(template.get_version(spec.get("version") or "$Default").data)
    except (ServiceException, IndexError) as error:
        raise rules.InvalidRequestError(f"Launch template not found: {spec}") from error


def _named(spec: Document, region: str) -> Document:
    backend = interfaces.ec2(region)
    key = {"template_ids": [spec["id"]]} if spec.get("id") else {"template_names": [spec["name"]]}
    template = backend.describe_launch_templates(**key)[0]
    version = spec.get("version") or str(template.default_version_number)
    return {"name": template.name, "id": template.id, "version": version}


def change(group: Thing, asked: Document) -> None:
    """Scales and marks the group as asked."""
    scaling = {**group.document["scalingConfig"], **(asked.get("scalingConfig") or {})}
    rules.check_scaling(scaling)
    group.document["scalingConfig"] = scaling
    labels = asked.get("labels") or {}
    group.document["labels"].update(labels.get("addOrUpdateLabels") or {})
    for key in labels.get("removeLabels") or []:
        group.document["labels"].pop(key, None)
    taints = asked.get("taints") or {}
    changed = [*(taints.get("addOrUpdateTaints") or []), *(taints.get("removeTaints") or [])]
    keys = {(taint["key"], taint["effect"]) for taint in changed}
    kept = [taint for taint in group.document["taints"] if (taint["key"], taint["effect"]) not in keys]
    group.document["taints"] = kept + list(taints.get("addOrUpdateTaints") or [])
    for key in ("updateConfig", "nodeRepairConfig"):
        if asked.get(key):
            group.document[key] = asked[key]
    group.hidden.pop("retry_at_s", None)


def change_template(group: Thing, spec: Document | None, region: str) -> None:
    """Takes another version of the group's launch template; another template is another group."""
    if not spec:
        return
    have = group.document.get("launchTemplate")
    if have is None or (spec.get("id") or have["id"]) != have["id"]:
        raise rules.InvalidParameterError(
            "You cannot change the launch template of a node group, only its version"
        )
    data = _template(spec, region)
    if bool(data.get("InstanceType")) != bool(group.hidden["template"].get("InstanceType")):
        raise rules.InvalidRequestError(
            "You must continue to not specify an instance type within the launch template"
        )
    group.document["launchTemplate"] = _named(spec, region)
    group.hidden["template"] = data
    if data.get("InstanceType"):
        group.hidden["type"] = data["InstanceType"]
    for instance in _instances(group):
        terminate(group.hidden["region"], instance)


def addon_end(cluster: Cluster, name: str) -> str:
    """Where a new add-on ends: what needs nodes degrades without them."""
    has_nodes = any(int(g.document["scalingConfig"]["desiredSize"]) > 0 for g in cluster.nodegroups.values())
    return "ACTIVE" if has_nodes or name not in NEEDS_NODES else "DEGRADED"


# --- as many instances as asked, as many nodes as instances


def _groups() -> Iterator[tuple[str, Cluster, Thing]]:
    for region, cluster in all_clusters():
        for group in list(cluster.nodegroups.values()):
            yield region, cluster, group


def _instances(group: Thing) -> list[Any]:
    return living(group.hidden["region"], group.document["clusterName"], group.document["nodegroupName"])


def _missing(group: Thing) -> int:
    if time.time() < group.hidden.get("retry_at_s", 0.0):
        return 0
    return int(group.document["scalingConfig"]["desiredSize"]) - len(_instances(group))


def _joinable(group: Thing) -> list[Any]:
    age_s = LIVE.real_s(JOIN_S)
    return [
        instance
        for instance in _instances(group)
        if instance.id not in group.hidden["joined"] and time.time() - instance.launch_time.timestamp() >= age_s
    ]


def _left(group: Thing) -> list[str]:
    alive = {instance.id for instance in _instances(group)}
    return [instance_id for instance_id in group.hidden["joined"] if instance_id not in alive]


def _is_settled(group: Thing) -> bool:
    """Whether its time has come and its instances have: they joined, are gone, or cannot be had."""
    if not group.is_due:
        return False
    desired = int(group.document["scalingConfig"]["desiredSize"])
    complete = len(_instances(group)) == len(group.hidden["joined"]) == desired
    return complete or (group.then != GONE and bool(group.document["health"]["issues"]))


def _settle(cluster: Cluster, group: Thing) -> None:
    """A new group that got no instances ends in CREATE_FAILED (containers-roadmap#2204)."""
    status = group.settle()
    if group.hidden.pop("creating", False) and group.document["health"]["issues"]:
        group.status = "CREATE_FAILED"
    if status == GONE:
        del cluster.nodegroups[group.document["nodegroupName"]]


def something_to_do() -> bool:
    """Whether any group has too few or too many instances or nodes, or has come to rest."""
    return any(
        _missing(group) or _joinable(group) or _left(group) or _is_settled(group) for _, _, group in _groups()
    )


def reconcile_all() -> None:
    """Launches, terminates, joins and removes what is missing or too much."""
    maker = nodes.configured()
    for region, cluster, group in _groups():
        _bring_instances(region, cluster, group)
        for instance in _joinable(group):
            spec = node_spec(region, group, instance)
            if maker is not None:
                maker.add(spec)
            group.hidden["joined"][instance.id] = spec.name
        for instance_id in _left(group):
            name = group.hidden["joined"].pop(instance_id)
            if maker is not None:
                maker.remove(name)
        if _is_settled(group):
            _settle(cluster, group)


def _bring_instances(region: str, cluster: Cluster, group: Thing) -> None:
    missing = _missing(group)
    for instance in reversed(_instances(group)):
        if missing >= 0:
            break
        terminate(region, instance)
        missing += 1
    try:
        for _ in range(missing):
            launch(region, cluster, group)
    except ServiceException as error:
        group.hidden["retry_at_s"] = time.time() + LIVE.real_s(RETRY_S)
        message = (
            f"Could not launch On-Demand Instances. {error.code} - {error.message} Launching EC2 instance failed."
        )
        scaling_group = group.document["resources"]["autoScalingGroups"][0]["name"]
        issue = {"code": "AsgInstanceLaunchFailures", "message": message, "resourceIds": [scaling_group]}
        group.document["health"] = {"issues": [issue]}
        return
    if missing >= 0 and not group.hidden.get("creating"):
        group.document["health"] = {"issues": []}
