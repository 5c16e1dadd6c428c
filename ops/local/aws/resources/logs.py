"""Log groups and what is made of them."""

from __future__ import annotations

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)


class LogGroup(ResourceModel):
    """A log group."""

    type = "AWS::Logs::LogGroup"

    def create(self, ctx: Context) -> Made:
        """Makes the group."""
        name = ctx.properties.get("LogGroupName") or ctx.name(512)
        key = {"kmsKeyId": ctx.properties["KmsKeyId"]} if "KmsKeyId" in ctx.properties else {}
        ctx.client("logs").create_log_group(logGroupName=name, tags=ctx.tags(ctx.properties.get("Tags")), **key)
        made = Made(name, {"Arn": f"arn:aws:logs:{ctx.region}:{ctx.account}:log-group:{name}:*"})
        ctx.claim(made)
        self._retention(ctx, name, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes how long it keeps, and the tags."""
        self._retention(ctx, ctx.physical_id, ctx.properties)
        logs, (new, gone) = ctx.client("logs"), ctx.changed_tags()
        arn = f"arn:aws:logs:{ctx.region}:{ctx.account}:log-group:{ctx.physical_id}"
        if new:
            logs.tag_resource(resourceArn=arn, tags=new)
        if gone:
            logs.untag_resource(resourceArn=arn, tagKeys=gone)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the group with what it holds."""
        with absent_is_fine():
            ctx.client("logs").delete_log_group(logGroupName=ctx.physical_id)

    def find(self, ctx: Context) -> Made | None:
        """The group of that name, if it exists."""
        name = ctx.properties.get("LogGroupName")
        if not name:
            return None
        found = ctx.client("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]
        if not any(group["logGroupName"] == name for group in found):
            return None
        return Made(name, {"Arn": f"arn:aws:logs:{ctx.region}:{ctx.account}:log-group:{name}:*"})

    @staticmethod
    def _retention(ctx: Context, name: str, p: Properties) -> None:
        logs = ctx.client("logs")
        if "RetentionInDays" in p:
            logs.put_retention_policy(logGroupName=name, retentionInDays=int(p["RetentionInDays"]))
        else:
            logs.delete_retention_policy(logGroupName=name)


class MetricFilter(ResourceModel):
    """A metric made of log lines."""

    type = "AWS::Logs::MetricFilter"

    def create(self, ctx: Context) -> Made:
        """Makes the filter."""
        name = ctx.properties.get("FilterName") or ctx.name(512)
        self._put(ctx, name, ctx.properties)
        return Made(name)

    def update(self, ctx: Context) -> Attributes:
        """Changes the filter."""
        self._put(ctx, ctx.physical_id, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the filter."""
        with absent_is_fine():
            ctx.client("logs").delete_metric_filter(
                logGroupName=ctx.properties["LogGroupName"], filterName=ctx.physical_id
            )

    @staticmethod
    def _put(ctx: Context, name: str, p: Properties) -> None:
        transformations = [
            {
                "metricName": t["MetricName"],
                "metricNamespace": t["MetricNamespace"],
                "metricValue": str(t["MetricValue"]),
            }
            for t in p["MetricTransformations"]
        ]
        ctx.client("logs").put_metric_filter(
            logGroupName=p["LogGroupName"],
            filterName=name,
            filterPattern=p["FilterPattern"],
            metricTransformations=transformations,
        )
