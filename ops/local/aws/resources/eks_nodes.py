"""Node groups."""

from __future__ import annotations

from typing import Any

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)
from ops.local.aws.resources.eks import gone, lower_first, status_of

LIMIT_S = 2100


class Nodegroup(ResourceModel):
    """A managed node group."""

    type = "AWS::EKS::Nodegroup"

    def create(self, ctx: Context) -> Made:
        """Starts the group and waits until its nodes have joined."""
        cluster = ctx.properties["ClusterName"]
        name = ctx.properties.get("NodegroupName") or ctx.name(63)
        ctx.client("eks").create_nodegroup(
            clusterName=cluster, nodegroupName=name, **self._asked(ctx, ctx.properties)
        )
        physical_id = f"{cluster}/{name}"
        ctx.claim(Made(physical_id))
        self._wait(ctx, physical_id)
        found = self._describe(ctx, physical_id)
        return Made(
            physical_id,
            {
                "Id": physical_id,
                "Arn": found["nodegroupArn"],
                "ClusterName": cluster,
                "NodegroupName": name,
            },
        )

    @staticmethod
    def _asked(ctx: Context, p: Properties) -> dict[str, Any]:
        kept = [
            "AmiType",
            "CapacityType",
            "InstanceTypes",
            "Labels",
            "LaunchTemplate",
            "NodeRole",
            "ReleaseVersion",
            "RemoteAccess",
            "Subnets",
            "Taints",
            "UpdateConfig",
            "Version",
            "NodeRepairConfig",
        ]
        asked: dict[str, Any] = lower_first({key: p[key] for key in kept if key in p})
        if "DiskSize" in p:
            asked["diskSize"] = int(p["DiskSize"])
        if "ScalingConfig" in p:
            asked["scalingConfig"] = _scaling(p)
        if "launchTemplate" in asked:
            asked["launchTemplate"] = {k: str(v) for k, v in asked["launchTemplate"].items()}
        return asked | {"tags": ctx.tags(p.get("Tags"))}

    def update(self, ctx: Context) -> Attributes:
        """Changes the template's version, then scale, labels and taints, as CloudFormation does."""
        before, after = self._asked(ctx, ctx.old), self._asked(ctx, ctx.properties)
        cluster, name = ctx.physical_id.split("/")
        eks, key = ctx.client("eks"), {"clusterName": cluster, "nodegroupName": name}
        moved = {
            k: after[k]
            for k in ("launchTemplate", "version", "releaseVersion")
            if k in after and after[k] != before.get(k)
        }
        if moved:
            eks.update_nodegroup_version(**key, **moved)
            self._wait(ctx, ctx.physical_id)
        config = _config(before, after)
        if config:
            eks.update_nodegroup_config(**key, **config)
            self._wait(ctx, ctx.physical_id)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the group and waits until its instances are gone."""
        cluster, name = ctx.physical_id.split("/")
        with absent_is_fine():
            ctx.client("eks").delete_nodegroup(clusterName=cluster, nodegroupName=name)
        ctx.wait(lambda: gone(lambda: self._describe(ctx, ctx.physical_id)), limit_s=LIMIT_S)

    def _wait(self, ctx: Context, physical_id: str) -> None:
        ctx.wait(lambda: status_of(self._describe(ctx, physical_id)) == "ACTIVE", limit_s=LIMIT_S)

    @staticmethod
    def _describe(ctx: Context, physical_id: str) -> dict[str, Any]:
        cluster, name = physical_id.split("/")
        found: dict[str, Any] = ctx.client("eks").describe_nodegroup(clusterName=cluster, nodegroupName=name)[
            "nodegroup"
        ]
        return found


def _scaling(p: Properties) -> dict[str, int]:
    return {key[:1].lower() + key[1:]: int(float(value)) for key, value in p["ScalingConfig"].items()}


def _config(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What update_nodegroup_config is to be called with."""
    config: dict[str, Any] = {
        key: after[key]
        for key in ("scalingConfig", "updateConfig", "nodeRepairConfig")
        if key in after and after[key] != before.get(key)
    }
    old_labels, new_labels = before.get("labels", {}), after.get("labels", {})
    if old_labels != new_labels:
        config["labels"] = {
            "addOrUpdateLabels": new_labels,
            "removeLabels": sorted(old_labels.keys() - new_labels.keys()),
        }
    old_taints, new_taints = before.get("taints", []), after.get("taints", [])
    if old_taints != new_taints:
        removed = [taint for taint in old_taints if taint not in new_taints]
        config["taints"] = {"addOrUpdateTaints": new_taints, "removeTaints": removed}
    return config
