"""Parameters of Systems Manager."""

from __future__ import annotations

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)


class Parameter(ResourceModel):
    """A parameter; without a name CloudFormation generates one (aws_eks_v2's KubectlReadyBarrier)."""

    type = "AWS::SSM::Parameter"

    def create(self, ctx: Context) -> Made:
        """Makes the parameter."""
        name = ctx.properties.get("Name") or f"CFN-{ctx.name(250)}"
        self._put(ctx, name, ctx.properties, overwrite=False)
        return Made(name, {"Type": ctx.properties["Type"], "Value": ctx.properties["Value"]})

    def update(self, ctx: Context) -> Attributes:
        """Writes the new value."""
        self._put(ctx, ctx.physical_id, ctx.properties, overwrite=True)
        return {"Type": ctx.properties["Type"], "Value": ctx.properties["Value"]}

    def delete(self, ctx: Context) -> None:
        """Removes the parameter."""
        with absent_is_fine("ParameterNotFound"):
            ctx.client("ssm").delete_parameter(Name=ctx.physical_id)

    @staticmethod
    def _put(ctx: Context, name: str, p: Properties, overwrite: bool) -> None:
        ctx.client("ssm").put_parameter(
            Name=name,
            Value=p["Value"],
            Type=p["Type"],
            Description=p.get("Description", ""),
            Overwrite=overwrite,
            Tier=p.get("Tier", "Standard"),
        )
