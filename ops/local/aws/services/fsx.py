"""FSx for Lustre: file systems, associations with S3, and tasks, with the time and refusals of AWS."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, cast

from moto.core.responses import ActionResult, BaseResponse, EmptyResult
from moto.fsx.models import fsx_backends
from moto.s3.models import s3_backends

from ops.local.aws.cloudformation.state import ACCOUNT, now
from ops.local.aws.refusals import AwsError
from ops.local.aws.services import clock, interfaces
from ops.local.aws.services import fsx_rules as rules
from ops.local.aws.services.lifecycle import GONE, Document, Thing, Things
from ops.local.aws.services.routing import answer_with
from ops.local.aws.settings import LIVE

CREATION_S, DELETION_S, UPDATE_S = 480, 300, 120
ASSOCIATION_S, ASSOCIATION_DELETION_S = 300, 120
TASK_S = 180
INTERFACES_MAX = 24


@dataclass
class Store:
    """FSx's memory in one region."""

    file_systems: Things = field(default_factory=Things)
    associations: Things = field(default_factory=Things)
    tasks: Things = field(default_factory=Things)


def store(region: str) -> Store:
    """The region's memory, kept in moto's FSx; its file systems are moto's own collection."""
    backend: Any = fsx_backends[ACCOUNT][region]
    if "store" not in backend.__dict__:
        backend.store = Store()
        backend.file_systems = backend.store.file_systems
    return cast(Store, backend.store)


class FsxApi(BaseResponse):
    """One method for each action."""

    def __init__(self) -> None:
        super().__init__(service_name="fsx")
        self.automated_parameter_parsing = True

    # --- file systems

    def create_file_system(self) -> ActionResult:
        """Starts a file system."""
        asked = dict(self.params)
        rules.check_creation(self.region, asked, [t.document for t in self._store.file_systems.values()])
        name = f"fs-{secrets.token_hex(9)[:17]}"
        lustre = dict(asked.get("LustreConfiguration") or {})
        subnet = interfaces.ec2(self.region).get_subnet(asked["SubnetIds"][0])
        persistent = str(lustre.get("DeploymentType", "")).startswith("PERSISTENT_2")
        document = {
            "OwnerId": ACCOUNT,
            "CreationTime": now(),
            "FileSystemId": name,
            "FileSystemType": asked["FileSystemType"],
            "StorageCapacity": asked.get("StorageCapacity"),
            "StorageType": asked.get("StorageType") or "SSD",
            "VpcId": subnet.vpc_id,
            "SubnetIds": list(asked["SubnetIds"]),
            "NetworkInterfaceIds": self._interfaces(name, asked),
            "DNSName": f"{name}.fsx.{self.region}.amazonaws.com",
            "KmsKeyId": asked.get("KmsKeyId") or f"arn:aws:kms:{self.region}:{ACCOUNT}:alias/aws/fsx",
            "ResourceARN": f"arn:aws:fsx:{self.region}:{ACCOUNT}:file-system/{name}",
            "Tags": list(asked.get("Tags") or []),
            "FileSystemTypeVersion": asked.get("FileSystemTypeVersion") or "2.15",
            "LustreConfiguration": {
                "WeeklyMaintenanceStartTime": "7:00:00",
                "DataCompressionType": "NONE",
                "CopyTagsToBackups": False,
                "AutomaticBackupRetentionDays": 0,
                **lustre,
                "MountName": secrets.token_hex(4) if persistent else "fsx",
            },
        }
        file_system = Thing(document, "CREATING", "Lifecycle")
        file_system.begin("CREATING", "AVAILABLE", CREATION_S)
        self._store.file_systems[name] = file_system
        return ActionResult({"FileSystem": file_system.view()})

    def _interfaces(self, name: str, asked: Document) -> list[str]:
        groups = asked.get("SecurityGroupIds") or []
        return [
            interfaces.make(
                self.region,
                asked["SubnetIds"][0],
                groups,
                f"Created By Amazon FSx for file system: arn:aws:fsx:{self.region}:{ACCOUNT}:file-system/{name}",
            )
            for _ in range(min(rules.servers(asked), INTERFACES_MAX))
        ]

    def describe_file_systems(self) -> ActionResult:
        """The file systems asked for, or all."""
        found = self._store.file_systems
        wanted = self._get_param("FileSystemIds") or list(found)
        return ActionResult({"FileSystems": [self._file_system(name).view() for name in wanted]})

    def update_file_system(self) -> ActionResult:
        """Grows the file system or changes its settings."""
        file_system = self._file_system(self._get_param("FileSystemId"))
        if file_system.status != "AVAILABLE":
            raise rules.BadRequestError("The file system is not in a state that can be updated.")
        capacity = self._get_param("StorageCapacity")
        document = file_system.document
        if capacity is not None:
            if int(capacity) <= int(document["StorageCapacity"]):
                raise rules.BadRequestError("The new storage capacity must be greater than the current one.")
            document["StorageCapacity"] = int(capacity)
        lustre = self._get_param("LustreConfiguration") or {}
        document["LustreConfiguration"] = {**document["LustreConfiguration"], **lustre}
        file_system.begin("UPDATING", "AVAILABLE", UPDATE_S)
        return ActionResult({"FileSystem": file_system.view()})

    def delete_file_system(self) -> ActionResult:
        """Starts the deletion, the associations' too."""
        name = self._get_param("FileSystemId")
        file_system = self._file_system(name)
        if file_system.status != "DELETING":
            file_system.begin("DELETING", GONE, DELETION_S)
        for association in self._store.associations.values():
            if association.document["FileSystemId"] == name:
                association.begin("DELETING", GONE, DELETION_S)
        return ActionResult({"FileSystemId": name, "Lifecycle": "DELETING", "LustreResponse": {}})

    # --- associations with S3

    def create_data_repository_association(self) -> ActionResult:
        """Links a directory to a prefix of a bucket."""
        asked = dict(self.params)
        file_system = self._file_system(asked["FileSystemId"])
        self._check_association(file_system, asked)
        name = f"dra-{secrets.token_hex(9)[:17]}"
        document = {
            "AssociationId": name,
            "ResourceARN": f"arn:aws:fsx:{self.region}:{ACCOUNT}:association/{asked['FileSystemId']}/{name}",
            "FileSystemId": asked["FileSystemId"],
            "FileSystemPath": asked.get("FileSystemPath") or "/",
            "DataRepositoryPath": asked["DataRepositoryPath"],
            "BatchImportMetaDataOnCreate": bool(asked.get("BatchImportMetaDataOnCreate")),
            "ImportedFileChunkSize": int(asked.get("ImportedFileChunkSize") or 1024),
            "S3": asked.get("S3") or {},
            "Tags": list(asked.get("Tags") or []),
            "CreationTime": now(),
        }
        association = Thing(document, "CREATING", "Lifecycle")
        association.begin("CREATING", "AVAILABLE", ASSOCIATION_S)
        self._store.associations[name] = association
        return ActionResult({"Association": association.view()})

    def _check_association(self, file_system: Thing, asked: Document) -> None:
        if file_system.status not in ("AVAILABLE", "UPDATING"):
            raise rules.BadRequestError(
                f"File system {asked['FileSystemId']} must be AVAILABLE to create a data repository association."
            )
        if file_system.document["LustreConfiguration"].get("DeploymentType") in ("SCRATCH_1", "PERSISTENT_1"):
            raise rules.BadRequestError("Data repository associations are not supported for this deployment type.")
        bucket = asked["DataRepositoryPath"].removeprefix("s3://").split("/")[0]
        if bucket not in s3_backends[ACCOUNT]["aws"].buckets:
            raise rules.BadRequestError(f"Failed to access the S3 bucket {bucket}: it does not exist.")
        rules.check_association(
            [
                other.document
                for other in self._store.associations.values()
                if other.document["FileSystemId"] == asked["FileSystemId"]
            ],
            {**asked, "FileSystemPath": asked.get("FileSystemPath") or "/"},
        )

    def describe_data_repository_associations(self) -> ActionResult:
        """The associations asked for, or all."""
        found = self._store.associations
        wanted = self._get_param("AssociationIds") or list(found)
        views = [self._association(name).view() for name in wanted]
        for asked in self._get_param("Filters") or []:
            key = {"file-system-id": "FileSystemId"}.get(asked["Name"])
            views = [view for view in views if key is None or view[key] in asked["Values"]]
        return ActionResult({"Associations": views})

    def update_data_repository_association(self) -> ActionResult:
        """Other policies or another chunk size."""
        association = self._association(self._get_param("AssociationId"))
        for key in ("S3", "ImportedFileChunkSize"):
            if self._get_param(key) is not None:
                association.document[key] = self._get_param(key)
        association.begin("UPDATING", "AVAILABLE", ASSOCIATION_DELETION_S)
        return ActionResult({"Association": association.view()})

    def delete_data_repository_association(self) -> ActionResult:
        """Starts the unlinking."""
        association = self._association(self._get_param("AssociationId"))
        association.begin("DELETING", GONE, ASSOCIATION_DELETION_S)
        view = {"AssociationId": association.document["AssociationId"], "Lifecycle": "DELETING"}
        return ActionResult({**view, "DeleteDataInFileSystem": bool(self._get_param("DeleteDataInFileSystem"))})

    # --- tasks

    def create_data_repository_task(self) -> ActionResult:
        """Starts an export or import."""
        asked = dict(self.params)
        file_system = self._file_system(asked["FileSystemId"])
        if file_system.status != "AVAILABLE":
            raise rules.BadRequestError("The file system is not AVAILABLE.")
        self._check_tasks(asked)
        name = f"task-{secrets.token_hex(9)[:17]}"
        document = {
            "TaskId": name,
            "Type": asked["Type"],
            "CreationTime": now(),
            "StartTime": now(),
            "ResourceARN": f"arn:aws:fsx:{self.region}:{ACCOUNT}:task/{name}",
            "Tags": list(asked.get("Tags") or []),
            "FileSystemId": asked["FileSystemId"],
            "Paths": list(asked.get("Paths") or []),
            "Report": asked.get("Report") or {"Enabled": False},
            "Status": {"TotalCount": 0, "SucceededCount": 0, "FailedCount": 0, "LastUpdatedTime": now()},
        }
        task = Thing(document, "PENDING", "Lifecycle")
        if LIVE.strikes("export_pending", asked["Type"]) is None:
            task.begin("EXECUTING", "SUCCEEDED", TASK_S)
        self._store.tasks[name] = task
        return ActionResult({"DataRepositoryTask": task.view()})

    def _check_tasks(self, asked: Document) -> None:
        running = [
            task
            for task in self._store.tasks.values()
            if task.document["FileSystemId"] == asked["FileSystemId"] and task.status in ("PENDING", "EXECUTING")
        ]
        if running:
            raise AwsError(
                "DataRepositoryTaskExecuting",
                "Another data repository task is already executing on the file system.",
            )

    def describe_data_repository_tasks(self) -> ActionResult:
        """The tasks asked for, or all."""
        found = self._store.tasks
        wanted = self._get_param("TaskIds") or list(found)
        views = [self._task(name).view() for name in wanted]
        names = {"file-system-id": "FileSystemId", "task-lifecycle": "Lifecycle"}
        for asked in self._get_param("Filters") or []:
            key = names.get(asked["Name"])
            views = [view for view in views if key is None or view[key] in asked["Values"]]
        return ActionResult({"DataRepositoryTasks": views})

    def cancel_data_repository_task(self) -> ActionResult:
        """Ends a task early."""
        task = self._task(self._get_param("TaskId"))
        if task.status not in ("PENDING", "EXECUTING"):
            raise AwsError("DataRepositoryTaskEnded", "The data repository task has already ended.")
        task.begin("CANCELED", "", 0)
        return ActionResult({"TaskId": task.document["TaskId"], "Lifecycle": "CANCELED"})

    # --- tags

    def tag_resource(self) -> ActionResult:
        """Adds tags."""
        document = self._by_arn()
        new = {tag["Key"]: tag["Value"] for tag in self._get_param("Tags")}
        old = {tag["Key"]: tag["Value"] for tag in document["Tags"]}
        document["Tags"] = [{"Key": k, "Value": v} for k, v in {**old, **new}.items()]
        return EmptyResult()

    def untag_resource(self) -> ActionResult:
        """Removes tags."""
        document = self._by_arn()
        document["Tags"] = [t for t in document["Tags"] if t["Key"] not in self._get_param("TagKeys")]
        return EmptyResult()

    def list_tags_for_resource(self) -> ActionResult:
        """The tags."""
        return ActionResult({"Tags": self._by_arn()["Tags"]})

    # --- finding things

    @property
    def _store(self) -> Store:
        return store(self.region)

    def _file_system(self, name: str) -> Thing:
        if name not in self._store.file_systems:
            raise AwsError("FileSystemNotFound", f"File system '{name}' does not exist.")
        return self._store.file_systems[name]

    def _association(self, name: str) -> Thing:
        if name not in self._store.associations:
            raise AwsError(
                "DataRepositoryAssociationNotFound", f"Data repository association {name} does not exist."
            )
        return self._store.associations[name]

    def _task(self, name: str) -> Thing:
        if name not in self._store.tasks:
            raise AwsError("DataRepositoryTaskNotFound", f"Data repository task {name} does not exist.")
        return self._store.tasks[name]

    def _by_arn(self) -> Document:
        arn = self._get_param("ResourceARN")
        for things in vars(self._store).values():
            for thing in things.values():
                if thing.document["ResourceARN"] == arn:
                    return cast(Document, thing.document)
        raise AwsError("ResourceNotFound", f"Resource {arn} does not exist.")


def _regions() -> list[str]:
    return list(dict.keys(fsx_backends[ACCOUNT]))


def something_due() -> bool:
    """Whether time has come for anything."""
    return any(things.anything_due for region in _regions() for things in vars(store(region)).values())


def settle_all() -> None:
    """Lets time pass."""
    for region in _regions():
        for things in vars(store(region)).values():
            things.settle(lambda _, thing, region=region: _release(region, thing))


def _release(region: str, thing: Any) -> None:
    if thing.status == GONE:
        interfaces.remove(region, thing.document.get("NetworkInterfaceIds", []))


def install() -> None:
    """Puts our API in moto's place and lets its time pass."""
    answer_with("fsx", FsxApi)
    clock.every_tick(something_due, settle_all)
