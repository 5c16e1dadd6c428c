"""Roles, policies and instance profiles."""

from __future__ import annotations

import json
from typing import Any

from ops.local.aws.cloudformation.errors import ResourceError
from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)


def _inline(properties: Properties) -> dict[str, str]:
    return {p["PolicyName"]: json.dumps(p["PolicyDocument"]) for p in properties.get("Policies", ())}


class Role(ResourceModel):
    """A role with its inline and attached policies."""

    type = "AWS::IAM::Role"

    def create(self, ctx: Context) -> Made:
        """Makes the role."""
        iam = ctx.client("iam")
        name = ctx.properties.get("RoleName") or ctx.name()
        role = iam.create_role(
            RoleName=name,
            Path=ctx.properties.get("Path", "/"),
            AssumeRolePolicyDocument=json.dumps(ctx.properties["AssumeRolePolicyDocument"]),
            Description=ctx.properties.get("Description", ""),
            MaxSessionDuration=int(ctx.properties.get("MaxSessionDuration", 3600)),
            Tags=_plain_tags(ctx, ctx.properties),
        )["Role"]
        made = Made(name, {"Arn": role["Arn"], "RoleId": role["RoleId"]})
        ctx.claim(made)
        self._bring_policies(iam, name, {}, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes trust and policies."""
        iam = ctx.client("iam")
        iam.update_assume_role_policy(
            RoleName=ctx.physical_id, PolicyDocument=json.dumps(ctx.properties["AssumeRolePolicyDocument"])
        )
        iam.update_role(
            RoleName=ctx.physical_id,
            Description=ctx.properties.get("Description", ""),
            MaxSessionDuration=int(ctx.properties.get("MaxSessionDuration", 3600)),
        )
        self._bring_policies(iam, ctx.physical_id, ctx.old, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the role with the policies that it was made with."""
        iam = ctx.client("iam")
        with absent_is_fine():
            self._bring_policies(iam, ctx.physical_id, ctx.properties, {})
            iam.delete_role(RoleName=ctx.physical_id)

    @staticmethod
    def _bring_policies(iam: Any, name: str, old: Properties, new: Properties) -> None:
        for policy, document in _inline(new).items():
            iam.put_role_policy(RoleName=name, PolicyName=policy, PolicyDocument=document)
        for policy in _inline(old).keys() - _inline(new).keys():
            iam.delete_role_policy(RoleName=name, PolicyName=policy)
        before, after = set(old.get("ManagedPolicyArns", ())), set(new.get("ManagedPolicyArns", ()))
        for arn in after - before:
            iam.attach_role_policy(RoleName=name, PolicyArn=arn)
        for arn in before - after:
            iam.detach_role_policy(RoleName=name, PolicyArn=arn)


def _plain_tags(ctx: Context, properties: Properties) -> list[dict[str, str]]:
    return [tag for tag in ctx.tag_list(properties.get("Tags")) if not tag["Key"].startswith("aws:")]


class Policy(ResourceModel):
    """An inline policy on roles."""

    type = "AWS::IAM::Policy"

    def create(self, ctx: Context) -> Made:
        """Puts the policy on every role."""
        if (
            not ctx.properties.get("Roles")
            and not ctx.properties.get("Users")
            and not ctx.properties.get("Groups")
        ):
            raise ResourceError("At least one of [Groups,Roles,Users] must be non-empty.")
        self._put(ctx, ctx.properties)
        return Made(ctx.name(), {"Id": ctx.properties["PolicyName"]})

    def update(self, ctx: Context) -> Attributes:
        """Puts the new text, and takes it from roles that it left."""
        self._put(ctx, ctx.properties)
        left = set(ctx.old.get("Roles", ())) - set(ctx.properties.get("Roles", ()))
        self._remove(ctx, ctx.old["PolicyName"], sorted(left))
        if ctx.old["PolicyName"] != ctx.properties["PolicyName"]:
            self._remove(ctx, ctx.old["PolicyName"], list(ctx.old.get("Roles", ())))
        return {}

    def delete(self, ctx: Context) -> None:
        """Takes the policy from every role."""
        self._remove(ctx, ctx.properties["PolicyName"], list(ctx.properties.get("Roles", ())))

    @staticmethod
    def _put(ctx: Context, p: Properties) -> None:
        for role in p.get("Roles", ()):
            ctx.client("iam").put_role_policy(
                RoleName=role, PolicyName=p["PolicyName"], PolicyDocument=json.dumps(p["PolicyDocument"])
            )

    @staticmethod
    def _remove(ctx: Context, name: str, roles: list[str]) -> None:
        for role in roles:
            with absent_is_fine():
                ctx.client("iam").delete_role_policy(RoleName=role, PolicyName=name)


class ManagedPolicy(ResourceModel):
    """A policy of its own, attached to roles."""

    type = "AWS::IAM::ManagedPolicy"

    def create(self, ctx: Context) -> Made:
        """Makes the policy and attaches it."""
        iam = ctx.client("iam")
        arn = iam.create_policy(
            PolicyName=ctx.properties.get("ManagedPolicyName") or ctx.name(),
            Path=ctx.properties.get("Path", "/"),
            Description=ctx.properties.get("Description", ""),
            PolicyDocument=json.dumps(ctx.properties["PolicyDocument"]),
        )["Policy"]["Arn"]
        made = Made(arn, {"PolicyArn": arn})
        ctx.claim(made)
        for role in ctx.properties.get("Roles", ()):
            iam.attach_role_policy(RoleName=role, PolicyArn=arn)
        return made

    def update(self, ctx: Context) -> Attributes:
        """A new default version, and the new roles."""
        iam = ctx.client("iam")
        if ctx.old["PolicyDocument"] != ctx.properties["PolicyDocument"]:
            self._drop_old_versions(iam, ctx.physical_id)
            iam.create_policy_version(
                PolicyArn=ctx.physical_id,
                PolicyDocument=json.dumps(ctx.properties["PolicyDocument"]),
                SetAsDefault=True,
            )
        before, after = set(ctx.old.get("Roles", ())), set(ctx.properties.get("Roles", ()))
        for role in after - before:
            iam.attach_role_policy(RoleName=role, PolicyArn=ctx.physical_id)
        for role in before - after:
            iam.detach_role_policy(RoleName=role, PolicyArn=ctx.physical_id)
        return {}

    def delete(self, ctx: Context) -> None:
        """Detaches the policy and removes it."""
        iam = ctx.client("iam")
        with absent_is_fine():
            attached = iam.list_entities_for_policy(PolicyArn=ctx.physical_id)["PolicyRoles"]
            for role in attached:
                iam.detach_role_policy(RoleName=role["RoleName"], PolicyArn=ctx.physical_id)
            self._drop_old_versions(iam, ctx.physical_id)
            iam.delete_policy(PolicyArn=ctx.physical_id)

    @staticmethod
    def _drop_old_versions(iam: Any, arn: str) -> None:
        for version in iam.list_policy_versions(PolicyArn=arn)["Versions"]:
            if not version["IsDefaultVersion"]:
                iam.delete_policy_version(PolicyArn=arn, VersionId=version["VersionId"])


class InstanceProfile(ResourceModel):
    """A role as instances take it."""

    type = "AWS::IAM::InstanceProfile"

    def create(self, ctx: Context) -> Made:
        """Makes the profile with its role."""
        iam = ctx.client("iam")
        name = ctx.properties.get("InstanceProfileName") or ctx.name()
        profile = iam.create_instance_profile(InstanceProfileName=name, Path=ctx.properties.get("Path", "/"))
        made = Made(name, {"Arn": profile["InstanceProfile"]["Arn"]})
        ctx.claim(made)
        for role in ctx.properties["Roles"]:
            iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=role)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes the role."""
        iam = ctx.client("iam")
        for role in ctx.old["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=ctx.physical_id, RoleName=role)
        for role in ctx.properties["Roles"]:
            iam.add_role_to_instance_profile(InstanceProfileName=ctx.physical_id, RoleName=role)
        return {}

    def delete(self, ctx: Context) -> None:
        """Takes the role out and removes the profile."""
        iam = ctx.client("iam")
        with absent_is_fine():
            for role in ctx.properties["Roles"]:
                iam.remove_role_from_instance_profile(InstanceProfileName=ctx.physical_id, RoleName=role)
            iam.delete_instance_profile(InstanceProfileName=ctx.physical_id)
