"""Security groups and their rules."""

from __future__ import annotations

from typing import Any

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
    delete_once_free,
)
from ops.local.aws.resources.ec2_network import retag, tag_specs

ALL_OUT = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


def permission(rule: Properties, peer: str) -> dict[str, Any]:
    """A rule as EC2's calls take it; `peer` is the property that names the other group."""
    made: dict[str, Any] = {"IpProtocol": str(rule["IpProtocol"])}
    for key in ("FromPort", "ToPort"):
        if key in rule and str(rule["IpProtocol"]) != "-1":
            made[key] = int(rule[key])
    text = {"Description": rule["Description"]} if rule.get("Description") else {}
    if "CidrIp" in rule:
        made["IpRanges"] = [{"CidrIp": rule["CidrIp"], **text}]
    if "CidrIpv6" in rule:
        made["Ipv6Ranges"] = [{"CidrIpv6": rule["CidrIpv6"], **text}]
    if peer in rule:
        made["UserIdGroupPairs"] = [{"GroupId": rule[peer], **text}]
    prefix = "SourcePrefixListId" if peer.startswith("Source") else "DestinationPrefixListId"
    if prefix in rule:
        made["PrefixListIds"] = [{"PrefixListId": rule[prefix]}]
    return made


SOURCE, DESTINATION = "SourceSecurityGroupId", "DestinationSecurityGroupId"


class SecurityGroup(ResourceModel):
    """A group with its inline rules; egress rules replace the open default, as in AWS."""

    type = "AWS::EC2::SecurityGroup"

    def create(self, ctx: Context) -> Made:
        """Makes the group with exactly the rules of the template."""
        ec2 = ctx.client("ec2")
        group_id = ec2.create_security_group(
            GroupName=ctx.properties.get("GroupName") or ctx.name(255),
            Description=ctx.properties["GroupDescription"],
            VpcId=ctx.properties["VpcId"],
            TagSpecifications=tag_specs(ctx, "security-group", ctx.properties),
        )["GroupId"]
        made = Made(group_id, {"GroupId": group_id, "Id": group_id, "VpcId": ctx.properties["VpcId"]})
        ctx.claim(made)
        if ctx.properties.get("SecurityGroupEgress"):
            ec2.revoke_security_group_egress(GroupId=group_id, IpPermissions=[ALL_OUT])
        self._rules(ec2, group_id, {}, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes the inline rules and tags."""
        self._rules(ctx.client("ec2"), ctx.physical_id, ctx.old, ctx.properties)
        retag(ctx, ctx.physical_id, ctx.old, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the group; EC2 refuses while an interface or a rule of another group has it."""
        ec2 = ctx.client("ec2")
        delete_once_free(ctx, lambda: ec2.delete_security_group(GroupId=ctx.physical_id))

    @staticmethod
    def _rules(ec2: Any, group_id: str, old: Properties, new: Properties) -> None:
        for key, peer, add, remove in (
            (
                "SecurityGroupIngress",
                SOURCE,
                ec2.authorize_security_group_ingress,
                ec2.revoke_security_group_ingress,
            ),
            (
                "SecurityGroupEgress",
                DESTINATION,
                ec2.authorize_security_group_egress,
                ec2.revoke_security_group_egress,
            ),
        ):
            before, after = list(old.get(key, ())), list(new.get(key, ()))
            for rule in before:
                if rule not in after:
                    remove(GroupId=group_id, IpPermissions=[permission(rule, peer)])
            for rule in after:
                if rule not in before:
                    add(GroupId=group_id, IpPermissions=[permission(rule, peer)])


class _Rule(ResourceModel):
    """A rule of its own."""

    peer: str
    direction: str

    def create(self, ctx: Context) -> Made:
        """Adds the rule."""
        found = getattr(ctx.client("ec2"), f"authorize_security_group_{self.direction}")(
            GroupId=ctx.properties["GroupId"], IpPermissions=[permission(ctx.properties, self.peer)]
        )
        rule_id = found["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return Made(rule_id, {"Id": rule_id})

    def update(self, ctx: Context) -> Attributes:
        """Changes the description; anything else makes another rule."""
        getattr(ctx.client("ec2"), f"update_security_group_rule_descriptions_{self.direction}")(
            GroupId=ctx.properties["GroupId"], IpPermissions=[permission(ctx.properties, self.peer)]
        )
        return {}

    def delete(self, ctx: Context) -> None:
        """Takes the rule away."""
        with absent_is_fine():
            getattr(ctx.client("ec2"), f"revoke_security_group_{self.direction}")(
                GroupId=ctx.properties["GroupId"], IpPermissions=[permission(ctx.properties, self.peer)]
            )


class SecurityGroupIngress(_Rule):
    """A rule for what comes in."""

    type = "AWS::EC2::SecurityGroupIngress"
    peer, direction = SOURCE, "ingress"


class SecurityGroupEgress(_Rule):
    """A rule for what goes out."""

    type = "AWS::EC2::SecurityGroupEgress"
    peer, direction = DESTINATION, "egress"
