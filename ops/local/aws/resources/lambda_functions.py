"""Lambda functions and layers: records, which this emulator never runs."""

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


def _code(asked: Properties) -> dict[str, Any]:
    if "ZipFile" in asked:
        return {"ZipFile": str(asked["ZipFile"]).encode()}
    return {key: asked[key] for key in ("S3Bucket", "S3Key", "S3ObjectVersion", "ImageUri") if key in asked}


class LayerVersion(ResourceModel):
    """A layer; it can never be changed, only replaced."""

    type = "AWS::Lambda::LayerVersion"

    def create(self, ctx: Context) -> Made:
        """Publishes the layer."""
        kept = ("CompatibleRuntimes", "CompatibleArchitectures", "Description", "LicenseInfo")
        found = ctx.client("lambda").publish_layer_version(
            LayerName=ctx.properties.get("LayerName") or ctx.name(64),
            Content=_code(ctx.properties["Content"]),
            **{key: ctx.properties[key] for key in kept if key in ctx.properties},
        )
        return Made(found["LayerVersionArn"], {"LayerVersionArn": found["LayerVersionArn"]})

    def delete(self, ctx: Context) -> None:
        """Removes the version."""
        name, _, version = ctx.physical_id.rpartition(":")
        with absent_is_fine():
            ctx.client("lambda").delete_layer_version(LayerName=name, VersionNumber=int(version))


class Function(ResourceModel):
    """A function."""

    type = "AWS::Lambda::Function"
    _SETTINGS = ("Role", "Handler", "Runtime", "Description", "Layers", "Environment", "TracingConfig")

    def create(self, ctx: Context) -> Made:
        """Makes the function."""
        name = ctx.properties.get("FunctionName") or ctx.name()
        found = ctx.client("lambda").create_function(
            FunctionName=name,
            Code=_code(ctx.properties["Code"]),
            Tags=ctx.tags(ctx.properties.get("Tags")),
            **self._settings(ctx.properties),
        )
        return Made(name, {"Arn": found["FunctionArn"]})

    def update(self, ctx: Context) -> Attributes:
        """Changes code and settings."""
        client = ctx.client("lambda")
        if ctx.old["Code"] != ctx.properties["Code"]:
            client.update_function_code(FunctionName=ctx.physical_id, **_code(ctx.properties["Code"]))
        client.update_function_configuration(FunctionName=ctx.physical_id, **self._settings(ctx.properties))
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the function."""
        with absent_is_fine():
            ctx.client("lambda").delete_function(FunctionName=ctx.physical_id)

    def _settings(self, p: Properties) -> dict[str, Any]:
        asked: dict[str, Any] = {key: p[key] for key in self._SETTINGS if key in p}
        for key in ("Timeout", "MemorySize"):
            if key in p:
                asked[key] = int(p[key])
        vpc = p.get("VpcConfig")
        if vpc:
            asked["VpcConfig"] = {
                "SubnetIds": list(vpc.get("SubnetIds", ())),
                "SecurityGroupIds": list(vpc.get("SecurityGroupIds", ())),
            }
        return asked


class Permission(ResourceModel):
    """Who may call a function."""

    type = "AWS::Lambda::Permission"

    def create(self, ctx: Context) -> Made:
        """Adds the permission."""
        statement = ctx.name()
        kept = ("FunctionName", "Action", "Principal", "SourceArn", "SourceAccount")
        ctx.client("lambda").add_permission(
            StatementId=statement, **{key: ctx.properties[key] for key in kept if key in ctx.properties}
        )
        return Made(statement, {"Id": statement})

    def delete(self, ctx: Context) -> None:
        """Takes the permission away."""
        with absent_is_fine():
            ctx.client("lambda").remove_permission(
                FunctionName=ctx.properties["FunctionName"], StatementId=ctx.physical_id
            )
