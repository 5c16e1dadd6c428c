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

    def create(self, ctx: Context, properties: Properties) -> Made:
        """Makes the key."""
        kms = ctx.client("kms")
        policy = {"Policy": json.dumps(properties["KeyPolicy"])} if "KeyPolicy" in properties else {}
        tags = [{"TagKey": k, "TagValue": v} for k, v in ctx.tags(properties.get("Tags")).items()]
        key = kms.create_key(
            Description=properties.get("Description", ""),
            KeySpec=properties.get("KeySpec", "SYMMETRIC_DEFAULT"),
            KeyUsage=properties.get("KeyUsage", "ENCRYPT_DECRYPT"),
            Tags=tags,
            **policy,
        )["KeyMetadata"]
        made = Made(key["KeyId"], {"Arn": key["Arn"], "KeyId": key["KeyId"]})
        ctx.claim(made)
        self._rotation(ctx, key["KeyId"], properties)
        return made

    def update(self, ctx: Context, physical_id: str, old: Properties, new: Properties) -> Attributes:
        """Changes description, policy and rotation."""
        kms = ctx.client("kms")
        kms.update_key_description(KeyId=physical_id, Description=new.get("Description", ""))
        if "KeyPolicy" in new:
            kms.put_key_policy(KeyId=physical_id, PolicyName="default", Policy=json.dumps(new["KeyPolicy"]))
        self._rotation(ctx, physical_id, new)
        return {}

    def delete(self, ctx: Context, physical_id: str, properties: Properties) -> None:
        """Schedules the deletion."""
        days = int(properties.get("PendingWindowInDays", 30))
        with absent_is_fine():
            ctx.client("kms").schedule_key_deletion(KeyId=physical_id, PendingWindowInDays=days)

    @staticmethod
    def _rotation(ctx: Context, key_id: str, p: Properties) -> None:
        if str(p.get("EnableKeyRotation", False)).lower() == "true":
            ctx.client("kms").enable_key_rotation(KeyId=key_id)
        else:
            ctx.client("kms").disable_key_rotation(KeyId=key_id)


class Alias(ResourceModel):
    """A name for a key."""

    type = "AWS::KMS::Alias"

    def create(self, ctx: Context, properties: Properties) -> Made:
        """Makes the alias."""
        ctx.client("kms").create_alias(
            AliasName=properties["AliasName"], TargetKeyId=properties["TargetKeyId"]
        )
        return Made(properties["AliasName"], {"AliasName": properties["AliasName"]})

    def update(self, ctx: Context, physical_id: str, old: Properties, new: Properties) -> Attributes:
        """Points the alias at another key."""
        ctx.client("kms").update_alias(AliasName=physical_id, TargetKeyId=new["TargetKeyId"])
        return {}

    def delete(self, ctx: Context, physical_id: str, properties: Properties) -> None:
        """Removes the alias."""
        with absent_is_fine():
            ctx.client("kms").delete_alias(AliasName=physical_id)
