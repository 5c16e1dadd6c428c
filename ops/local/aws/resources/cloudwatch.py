"""Alarms and dashboards."""

from __future__ import annotations

from typing import Any

from ops.local.aws.resources.base import Attributes, Context, Made, Properties, ResourceModel


class Alarm(ResourceModel):
    """An alarm on a metric."""

    type = "AWS::CloudWatch::Alarm"
    _NUMBERS = ("EvaluationPeriods", "DatapointsToAlarm", "Period")
    _KEPT = (
        "AlarmDescription",
        "ActionsEnabled",
        "OKActions",
        "AlarmActions",
        "InsufficientDataActions",
        "MetricName",
        "Namespace",
        "Statistic",
        "ExtendedStatistic",
        "Dimensions",
        "Unit",
        "ComparisonOperator",
        "TreatMissingData",
        "Metrics",
    )

    def create(self, ctx: Context) -> Made:
        """Makes the alarm."""
        name = ctx.properties.get("AlarmName") or ctx.name(255)
        self._put(ctx, name, ctx.properties)
        return Made(name, {"Arn": f"arn:aws:cloudwatch:{ctx.region}:{ctx.account}:alarm:{name}"})

    def update(self, ctx: Context) -> Attributes:
        """Changes the alarm."""
        self._put(ctx, ctx.physical_id, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the alarm."""
        ctx.client("cloudwatch").delete_alarms(AlarmNames=[ctx.physical_id])

    def _put(self, ctx: Context, name: str, p: Properties) -> None:
        asked: dict[str, Any] = {key: p[key] for key in self._KEPT if key in p}
        asked |= {key: int(p[key]) for key in self._NUMBERS if key in p}
        if "Threshold" in p:
            asked["Threshold"] = float(p["Threshold"])
        ctx.client("cloudwatch").put_metric_alarm(AlarmName=name, **asked)


class Dashboard(ResourceModel):
    """A dashboard."""

    type = "AWS::CloudWatch::Dashboard"

    def create(self, ctx: Context) -> Made:
        """Makes the dashboard."""
        name = ctx.properties.get("DashboardName") or ctx.name(255)
        ctx.client("cloudwatch").put_dashboard(DashboardName=name, DashboardBody=ctx.properties["DashboardBody"])
        return Made(name)

    def update(self, ctx: Context) -> Attributes:
        """Changes the dashboard."""
        ctx.client("cloudwatch").put_dashboard(
            DashboardName=ctx.physical_id, DashboardBody=ctx.properties["DashboardBody"]
        )
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the dashboard."""
        found = ctx.client("cloudwatch").list_dashboards(DashboardNamePrefix=ctx.physical_id)["DashboardEntries"]
        if any(entry["DashboardName"] == ctx.physical_id for entry in found):
            ctx.client("cloudwatch").delete_dashboards(DashboardNames=[ctx.physical_id])
