"""FSx for Lustre."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from ops.local.aws.cloudformation.errors import ResourceError, handler_reason
from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    ResourceModel,
    absent_is_fine,
)

LIMIT_S = 3600
NUMBERS = ("PerUnitStorageThroughput", "AutomaticBackupRetentionDays", "ImportedFileChunkSize", "Iops")
FLAGS = ("EfaEnabled", "CopyTagsToBackups")


def _typed(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _typed(name, inner) for name, inner in value.items()}
    if key in NUMBERS:
        return int(value)
    return str(value).lower() == "true" if key in FLAGS else value


def _lifecycle(found: dict[str, Any]) -> str:
    lifecycle = str(found["Lifecycle"])
    if lifecycle in ("FAILED", "MISCONFIGURED"):
        message = found.get("FailureDetails", {}).get("Message", "")
        raise ResourceError(handler_reason(message, "GeneralServiceException"))
    return lifecycle


class FileSystem(ResourceModel):
    """A Lustre file system."""

    type = "AWS::FSx::FileSystem"

    def create(self, ctx: Context) -> Made:
        """Starts the file system and waits until it can be mounted."""
        kept = [
            "FileSystemType",
            "StorageType",
            "SubnetIds",
            "SecurityGroupIds",
            "KmsKeyId",
            "FileSystemTypeVersion",
        ]
        asked: dict[str, Any] = {key: ctx.properties[key] for key in kept if key in ctx.properties}
        if "StorageCapacity" in ctx.properties:
            asked["StorageCapacity"] = int(ctx.properties["StorageCapacity"])
        if "LustreConfiguration" in ctx.properties:
            asked["LustreConfiguration"] = _typed("", ctx.properties["LustreConfiguration"])
        found = ctx.client("fsx").create_file_system(Tags=ctx.tag_list(ctx.properties.get("Tags")), **asked)
        made = self._made(found["FileSystem"])
        ctx.claim(made)
        self._wait(ctx, made.physical_id)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Grows it or changes its settings."""
        asked: dict[str, Any] = {}
        if ctx.old.get("StorageCapacity") != ctx.properties.get("StorageCapacity"):
            asked["StorageCapacity"] = int(ctx.properties["StorageCapacity"])
        before, after = (_typed("", p.get("LustreConfiguration", {})) for p in (ctx.old, ctx.properties))
        changed = {key: value for key, value in after.items() if before.get(key) != value}
        if changed:
            asked["LustreConfiguration"] = changed
        if asked:
            ctx.client("fsx").update_file_system(FileSystemId=ctx.physical_id, **asked)
            self._wait(ctx, ctx.physical_id)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes it and waits until its interfaces are gone."""
        with absent_is_fine():
            ctx.client("fsx").delete_file_system(FileSystemId=ctx.physical_id)
        ctx.wait(lambda: self._gone(ctx, ctx.physical_id), limit_s=LIMIT_S)

    def _wait(self, ctx: Context, name: str) -> None:
        ctx.wait(lambda: _lifecycle(self._describe(ctx, name)) == "AVAILABLE", limit_s=LIMIT_S)

    def _gone(self, ctx: Context, name: str) -> bool:
        try:
            _lifecycle(self._describe(ctx, name))
        except ClientError as error:
            return "NotFound" in error.response["Error"]["Code"]
        return False

    @staticmethod
    def _describe(ctx: Context, name: str) -> dict[str, Any]:
        found: dict[str, Any] = ctx.client("fsx").describe_file_systems(FileSystemIds=[name])["FileSystems"][0]
        return found

    @staticmethod
    def _made(found: dict[str, Any]) -> Made:
        return Made(
            found["FileSystemId"],
            {
                "DNSName": found["DNSName"],
                "LustreMountName": found["LustreConfiguration"]["MountName"],
                "ResourceARN": found["ResourceARN"],
                "RootVolumeId": "",
            },
        )


class DataRepositoryAssociation(ResourceModel):
    """A link between a directory and a prefix of a bucket."""

    type = "AWS::FSx::DataRepositoryAssociation"

    def create(self, ctx: Context) -> Made:
        """Links them and waits."""
        asked = {key: ctx.properties[key] for key in ("FileSystemId", "FileSystemPath", "DataRepositoryPath")}
        if "S3" in ctx.properties:
            asked["S3"] = ctx.properties["S3"]
        if "ImportedFileChunkSize" in ctx.properties:
            asked["ImportedFileChunkSize"] = int(ctx.properties["ImportedFileChunkSize"])
        batch = str(ctx.properties.get("BatchImportMetaDataOnCreate", False)).lower() == "true"
        found = ctx.client("fsx").create_data_repository_association(
            BatchImportMetaDataOnCreate=batch, Tags=ctx.tag_list(ctx.properties.get("Tags")), **asked
        )["Association"]
        made = Made(
            found["AssociationId"],
            {"AssociationId": found["AssociationId"], "ResourceARN": found["ResourceARN"]},
        )
        ctx.claim(made)
        self._wait(ctx, made.physical_id)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes the policies."""
        asked: dict[str, Any] = {"S3": ctx.properties["S3"]} if "S3" in ctx.properties else {}
        if "ImportedFileChunkSize" in ctx.properties:
            asked["ImportedFileChunkSize"] = int(ctx.properties["ImportedFileChunkSize"])
        ctx.client("fsx").update_data_repository_association(AssociationId=ctx.physical_id, **asked)
        self._wait(ctx, ctx.physical_id)
        return {}

    def delete(self, ctx: Context) -> None:
        """Unlinks them and waits."""
        with absent_is_fine():
            ctx.client("fsx").delete_data_repository_association(
                AssociationId=ctx.physical_id, DeleteDataInFileSystem=False
            )
        ctx.wait(lambda: self._gone(ctx, ctx.physical_id), limit_s=LIMIT_S)

    def _wait(self, ctx: Context, name: str) -> None:
        ctx.wait(lambda: _lifecycle(self._describe(ctx, name)) == "AVAILABLE", limit_s=LIMIT_S)

    def _gone(self, ctx: Context, name: str) -> bool:
        try:
            _lifecycle(self._describe(ctx, name))
        except ClientError as error:
            return "NotFound" in error.response["Error"]["Code"]
        return False

    @staticmethod
    def _describe(ctx: Context, name: str) -> dict[str, Any]:
        fsx = ctx.client("fsx")
        found: dict[str, Any] = fsx.describe_data_repository_associations(AssociationIds=[name])["Associations"][0]
        return found
