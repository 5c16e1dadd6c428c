"""Launch templates, placement groups, capacity reservations."""

from __future__ import annotations

from typing import Any

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    ResourceModel,
    absent_is_fine,
)
from ops.local.aws.resources.ec2_network import tag_specs

NUMBERS = frozenset(
    [
        "DeviceIndex",
        "NetworkCardIndex",
        "VolumeSize",
        "Iops",
        "Throughput",
        "HttpPutResponseHopLimit",
        "Ipv6AddressCount",
        "SecondaryPrivateIpAddressCount",
        "PartitionNumber",
        "CoreCount",
        "ThreadsPerCore",
        "Ipv4PrefixCount",
    ]
)
FLAGS = frozenset(
    [
        "DeleteOnTermination",
        "Encrypted",
        "EbsOptimized",
        "AssociatePublicIpAddress",
        "DisableApiTermination",
        "Enabled",
        "AssociateCarrierIpAddress",
        "DisableApiStop",
    ]
)


def api_value(key: str, value: Any) -> Any:
    """A property as EC2's API types it: templates may hold numbers and flags as text."""
    if isinstance(value, dict):
        return {name: api_value(name, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [api_value(key, inner) for inner in value]
    if key in NUMBERS:
        return int(value)
    return str(value).lower() == "true" if key in FLAGS else value


class LaunchTemplate(ResourceModel):
    """A launch template; every change is a new version, which becomes the default."""

    type = "AWS::EC2::LaunchTemplate"

    def create(self, ctx: Context) -> Made:
        """Makes the template with its first version."""
        found = ctx.client("ec2").create_launch_template(
            LaunchTemplateName=ctx.properties.get("LaunchTemplateName") or ctx.name(128),
            LaunchTemplateData=api_value("", dict(ctx.properties["LaunchTemplateData"])),
            TagSpecifications=tag_specs(ctx, "launch-template", {}),
        )["LaunchTemplate"]
        return Made(found["LaunchTemplateId"], self._attributes(found))

    def update(self, ctx: Context) -> Attributes:
        """Adds a version and makes it the default."""
        ec2 = ctx.client("ec2")
        version = ec2.create_launch_template_version(
            LaunchTemplateId=ctx.physical_id,
            LaunchTemplateData=api_value("", dict(ctx.properties["LaunchTemplateData"])),
        )["LaunchTemplateVersion"]["VersionNumber"]
        ec2.modify_launch_template(LaunchTemplateId=ctx.physical_id, DefaultVersion=str(version))
        found = ec2.describe_launch_templates(LaunchTemplateIds=[ctx.physical_id])["LaunchTemplates"][0]
        return self._attributes(found)

    def delete(self, ctx: Context) -> None:
        """Removes the template."""
        with absent_is_fine():
            ctx.client("ec2").delete_launch_template(LaunchTemplateId=ctx.physical_id)

    @staticmethod
    def _attributes(found: dict[str, Any]) -> Attributes:
        return {
            "LaunchTemplateId": found["LaunchTemplateId"],
            "LatestVersionNumber": str(found["LatestVersionNumber"]),
            "DefaultVersionNumber": str(found["DefaultVersionNumber"]),
        }


class PlacementGroup(ResourceModel):
    """A placement group."""

    type = "AWS::EC2::PlacementGroup"

    def create(self, ctx: Context) -> Made:
        """Makes the group."""
        name = ctx.name(255)
        ctx.client("ec2").create_placement_group(
            GroupName=name,
            Strategy=ctx.properties.get("Strategy", "cluster"),
            TagSpecifications=tag_specs(ctx, "placement-group", ctx.properties),
        )
        return Made(name, {"GroupName": name})

    def delete(self, ctx: Context) -> None:
        """Removes the group."""
        with absent_is_fine("InvalidPlacementGroup.Unknown"):
            ctx.client("ec2").delete_placement_group(GroupName=ctx.physical_id)


class CapacityReservation(ResourceModel):
    """Instances kept for the account."""

    type = "AWS::EC2::CapacityReservation"

    def create(self, ctx: Context) -> Made:
        """Reserves them."""
        kept = ("InstanceType", "InstancePlatform", "AvailabilityZone", "InstanceMatchCriteria")
        found = ctx.client("ec2").create_capacity_reservation(
            InstanceCount=int(ctx.properties["InstanceCount"]),
            **{key: ctx.properties[key] for key in kept if key in ctx.properties},
        )["CapacityReservation"]
        reservation_id = found["CapacityReservationId"]
        shown = ("AvailabilityZone", "InstanceType", "Tenancy")
        return Made(
            reservation_id,
            {
                "Id": reservation_id,
                "AvailableInstanceCount": str(found["AvailableInstanceCount"]),
                "TotalInstanceCount": str(found["TotalInstanceCount"]),
                **{key: found[key] for key in shown},
            },
        )

    def delete(self, ctx: Context) -> None:
        """Gives them back."""
        with absent_is_fine():
            ctx.client("ec2").cancel_capacity_reservation(CapacityReservationId=ctx.physical_id)
