"""Rules of EventBridge."""

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


class Rule(ResourceModel):
    """A rule with its targets."""

    type = "AWS::Events::Rule"

    def create(self, ctx: Context) -> Made:
        """Makes the rule."""
        name = ctx.properties.get("Name") or ctx.name()
        arn = self._put(ctx, name, ctx.properties)
        made = Made(name, {"Arn": arn})
        ctx.claim(made)
        self._targets(ctx, name, {}, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes the rule and its targets."""
        self._put(ctx, ctx.physical_id, ctx.properties)
        self._targets(ctx, ctx.physical_id, ctx.old, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes targets and rule."""
        with absent_is_fine():
            self._targets(ctx, ctx.physical_id, ctx.properties, {})
            ctx.client("events").delete_rule(Name=ctx.physical_id)

    @staticmethod
    def _put(ctx: Context, name: str, p: Properties) -> str:
        kept = ("ScheduleExpression", "State", "Description", "RoleArn", "EventBusName")
        asked = {key: p[key] for key in kept if key in p}
        if "EventPattern" in p:
            asked["EventPattern"] = json.dumps(p["EventPattern"])
        return str(ctx.client("events").put_rule(Name=name, **asked)["RuleArn"])

    @staticmethod
    def _targets(ctx: Context, name: str, old: Properties, new: Properties) -> None:
        before, after = ([dict(t) for t in p.get("Targets", ())] for p in (old, new))
        gone = {t["Id"] for t in before} - {t["Id"] for t in after}
        if gone:
            ctx.client("events").remove_targets(Rule=name, Ids=sorted(gone))
        if after:
            ctx.client("events").put_targets(Rule=name, Targets=after)
