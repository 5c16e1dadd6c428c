"""Projects that build images where there is no engine."""

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
from ops.local.aws.resources.eks import lower_first


class Project(ResourceModel):
    """A project."""

    type = "AWS::CodeBuild::Project"

    def create(self, ctx: Context) -> Made:
        """Makes the project."""
        name = ctx.properties.get("Name") or ctx.name(150)
        asked = self._asked(ctx.properties)
        arn = ctx.client("codebuild").create_project(name=name, **asked)["project"]["arn"]
        return Made(name, {"Arn": arn})

    def update(self, ctx: Context) -> Attributes:
        """Makes the project anew under its name: moto changes none in place."""
        client = ctx.client("codebuild")
        client.delete_project(name=ctx.physical_id)
        client.create_project(name=ctx.physical_id, **self._asked(ctx.properties))
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the project."""
        with absent_is_fine():
            ctx.client("codebuild").delete_project(name=ctx.physical_id)

    @staticmethod
    def _asked(p: Properties) -> dict[str, Any]:
        environment = lower_first(p["Environment"])
        source = {**lower_first(p["Source"])}
        source.pop("buildSpec", None)
        source["location"] = p["Source"].get("Location", "none")
        if "BuildSpec" in p["Source"]:
            source["buildspec"] = p["Source"]["BuildSpec"]
        return {
            "source": source,
            "artifacts": lower_first(p["Artifacts"]),
            "environment": environment,
            "serviceRole": p["ServiceRole"],
            "description": p.get("Description", ""),
        }
