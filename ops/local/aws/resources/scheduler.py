"""Schedules of EventBridge Scheduler."""

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


class Schedule(ResourceModel):
    """A schedule."""

    type = "AWS::Scheduler::Schedule"

    def create(self, ctx: Context) -> Made:
        """Makes the schedule."""
        name = ctx.properties.get("Name") or ctx.name()
        arn = ctx.client("scheduler").create_schedule(Name=name, **self._asked(ctx.properties))["ScheduleArn"]
        return Made(name, {"Arn": arn})

    def update(self, ctx: Context) -> Attributes:
        """Changes the schedule."""
        ctx.client("scheduler").update_schedule(Name=ctx.physical_id, **self._asked(ctx.properties))
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the schedule."""
        group = {"GroupName": ctx.properties["GroupName"]} if "GroupName" in ctx.properties else {}
        with absent_is_fine():
            ctx.client("scheduler").delete_schedule(Name=ctx.physical_id, **group)

    @staticmethod
    def _asked(p: Properties) -> dict[str, Any]:
        kept = [
            "Description",
            "EndDate",
            "FlexibleTimeWindow",
            "GroupName",
            "KmsKeyArn",
            "ScheduleExpression",
            "ScheduleExpressionTimezone",
            "StartDate",
            "State",
            "Target",
        ]
        return {key: p[key] for key in kept if key in p}


class ScheduleGroup(ResourceModel):
    """A group of schedules."""

    type = "AWS::Scheduler::ScheduleGroup"

    def create(self, ctx: Context) -> Made:
        """Makes the group."""
        name = ctx.properties.get("Name") or ctx.name()
        arn = ctx.client("scheduler").create_schedule_group(Name=name)["ScheduleGroupArn"]
        return Made(name, {"Arn": arn})

    def delete(self, ctx: Context) -> None:
        """Removes the group."""
        with absent_is_fine():
            ctx.client("scheduler").delete_schedule_group(Name=ctx.physical_id)
