"""Placement groups, which moto's EC2 lacks."""

from __future__ import annotations

import secrets
from typing import Any, cast

from moto.core.responses import ActionResult, EmptyResult

from ops.local.aws.cloudformation.state import ACCOUNT
from ops.local.aws.refusals import AwsError
from ops.local.aws.services import interfaces

Group = dict[str, Any]


def placement_groups(region: str) -> dict[str, Group]:
    """The region's placement groups by name, kept in moto's EC2."""
    return cast(dict[str, Group], interfaces.ec2(region).__dict__.setdefault("placement_groups", {}))


class PlacementActions:
    """EC2's actions about placement groups."""

    def create_placement_group(self: Any) -> ActionResult:
        """Makes a group."""
        groups, name = placement_groups(self.region), self._get_param("GroupName")
        if name in groups:
            raise AwsError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
        group_id = f"pg-{secrets.token_hex(9)[:17]}"
        groups[name] = {
            "GroupName": name,
            "GroupId": group_id,
            "GroupArn": f"arn:aws:ec2:{self.region}:{ACCOUNT}:placement-group/{name}",
            "State": "available",
            "Strategy": self._get_param("Strategy") or "cluster",
            "PartitionCount": self._get_param("PartitionCount"),
            "SpreadLevel": self._get_param("SpreadLevel"),
            "Tags": [t for s in self._get_param("TagSpecifications") or [] for t in s.get("Tags", [])],
        }
        return ActionResult({"PlacementGroup": groups[name]})

    def describe_placement_groups(self: Any) -> ActionResult:
        """The groups asked for, or all."""
        groups = placement_groups(self.region)
        for name in self._get_param("GroupNames") or []:
            if name not in groups:
                raise AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        wanted = self._get_param("GroupNames") or list(groups)
        found = [groups[name] for name in wanted]
        for asked in self._get_param("Filters") or []:
            if asked["Name"].startswith("tag:"):
                key = asked["Name"].removeprefix("tag:")
                found = [
                    g for g in found if any(t["Key"] == key and t["Value"] in asked["Values"] for t in g["Tags"])
                ]
        return ActionResult({"PlacementGroups": found})

    def delete_placement_group(self: Any) -> ActionResult:
        """Removes a group without instances."""
        groups, name = placement_groups(self.region), self._get_param("GroupName")
        if name not in groups:
            raise AwsError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        del groups[name]
        return EmptyResult()
