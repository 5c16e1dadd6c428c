"""Keys and their aliases."""

from __future__ import annotations

import json

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)


class Key(ResourceModel):
    """A key; its deletion is scheduled, as AWS allows no other."""

    type = "AWS::KMS::Key"

    def create(self, ctx: Context) -> Made:
        """Makes the key."""
        kms = ctx.client("kms")
        policy = {"Policy": json.dumps(ctx.properties["KeyPolicy"])} if "KeyPolicy" in ctx.properties else {}
        tags = [{"TagKey": k, "TagValue": v} for k, v in ctx.tags(ctx.properties.get("Tags")).items()]
        key = kms.create_key(
            Description=ctx.properties.get("Description", ""),
            KeySpec=ctx.properties.get("KeySpec", "SYMMETRIC_DEFAULT"),
            KeyUsage=ctx.properties.get("KeyUsage", "ENCRYPT_DECRYPT"),
            Tags=tags,
            **policy,
        )["KeyMetadata"]
        made = Made(key["KeyId"], {"Arn": key["Arn"], "KeyId": key["KeyId"]})
        ctx.claim(made)
        self._rotation(ctx, key["KeyId"], ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes description, policy, rotation and tags."""
        kms = ctx.client("kms")
        kms.update_key_description(KeyId=ctx.physical_id, Description=ctx.properties.get("Description", ""))
        if "KeyPolicy" in ctx.properties:
            kms.put_key_policy(
                KeyId=ctx.physical_id, PolicyName="default", Policy=json.dumps(ctx.properties["KeyPolicy"])
            )
        self._rotation(ctx, ctx.physical_id, ctx.properties)
        new, gone = ctx.changed_tags()
        kms.tag_resource(KeyId=ctx.physical_id, Tags=[{"TagKey": k, "TagValue": v} for k, v in new.items()])
        kms.untag_resource(KeyId=ctx.physical_id, TagKeys=gone)
        return {}

    def delete(self, ctx: Context) -> None:
        """Schedules the deletion."""
        days = int(ctx.properties.get("PendingWindowInDays", 30))
        with absent_is_fine():
            ctx.client("kms").schedule_key_deletion(KeyId=ctx.physical_id, PendingWindowInDays=days)

    @staticmethod
    def _rotation(ctx: Context, key_id: str, p: Properties) -> None:
        if str(p.get("EnableKeyRotation", False)).lower() == "true":
            ctx.client("kms").enable_key_rotation(KeyId=key_id)
        else:
            ctx.client("kms").disable_key_rotation(KeyId=key_id)


class Alias(ResourceModel):
    """A name for a key."""

    type = "AWS::KMS::Alias"

    def create(self, ctx: Context) -> Made:
        """Makes the alias."""
        ctx.client("kms").create_alias(
            AliasName=ctx.properties["AliasName"], TargetKeyId=ctx.properties["TargetKeyId"]
        )
        return Made(ctx.properties["AliasName"], {"AliasName": ctx.properties["AliasName"]})

    def update(self, ctx: Context) -> Attributes:
        """Points the alias at another key."""
        ctx.client("kms").update_alias(AliasName=ctx.physical_id, TargetKeyId=ctx.properties["TargetKeyId"])
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the alias."""
        with absent_is_fine():
            ctx.client("kms").delete_alias(AliasName=ctx.physical_id)
