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

    def create(self, ctx: Context, properties: Properties) -> Made:
        """Makes the parameter."""
        name = properties.get("Name") or f"CFN-{ctx.name(250)}"
        self._put(ctx, name, properties, overwrite=False)
        return Made(name, {"Type": properties["Type"], "Value": properties["Value"]})

    def update(self, ctx: Context, physical_id: str, old: Properties, new: Properties) -> Attributes:
        """Writes the new value."""
        self._put(ctx, physical_id, new, overwrite=True)
        return {"Type": new["Type"], "Value": new["Value"]}

    def delete(self, ctx: Context, physical_id: str, properties: Properties) -> None:
        """Removes the parameter."""
        with absent_is_fine("ParameterNotFound"):
            ctx.client("ssm").delete_parameter(Name=physical_id)

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
