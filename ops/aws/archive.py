"""Nothing of the file system is only on the file system: the archive check, and how it comes true."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ops.aws.access import Aws
from ops.aws.stacks import stack
from ops.errors import CloudError

POLL_S = 10.0
ASSOCIATION_LIMIT_S = 900.0


def file_system_id(aws: Aws) -> str | None:
    """None when the storage stack is not there, or never got as far."""
    found = stack(aws, "storage")
    return found.outputs.get("FileSystemId") if found else None


def export(aws: Aws, say: Callable[[str], None], *, limit_s: float, poll_s: float = POLL_S) -> int:
    """Export everything that is not in the archive yet, wait, and return how many files were exported.

    FSx does not run automatic export and an export task at the same time, so the former rests meanwhile.
    Raises CloudError when the task fails, leaves files out, or does not end in time.
    """
    name = file_system_id(aws)
    if name is None:
        raise CloudError(f"{aws.environment.name} has no file system", fix="`steadfast deploy` makes it")
    exporting = [item for item in _associations(aws, name) if _exports(item)]
    paths = [item["FileSystemPath"].lstrip("/") for item in exporting]
    if not paths:
        return 0
    with _automatic_export_at_rest(aws, exporting, poll_s):
        return _run_task(aws, name, paths, say, limit_s, poll_s)


def _associations(aws: Aws, file_system: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = aws.client("fsx").describe_data_repository_associations(
        Filters=[{"Name": "file-system-id", "Values": [file_system]}]
    )["Associations"]
    return found


def _exports(association: dict[str, Any]) -> bool:
    return bool(association.get("S3", {}).get("AutoExportPolicy", {}).get("Events"))


@contextmanager
def _automatic_export_at_rest(aws: Aws, associations: list[dict[str, Any]], poll_s: float) -> Iterator[None]:
    try:
        for association in associations:
            _set_policy(aws, association, {"Events": []}, poll_s)
        yield
    finally:
        for association in associations:
            _set_policy(aws, association, association["S3"]["AutoExportPolicy"], poll_s)


def _set_policy(aws: Aws, association: dict[str, Any], policy: dict[str, Any], poll_s: float) -> None:
    client, name = aws.client("fsx"), association["AssociationId"]
    client.update_data_repository_association(
        AssociationId=name, S3={**association["S3"], "AutoExportPolicy": policy}
    )
    deadline_s = time.monotonic() + ASSOCIATION_LIMIT_S
    while True:
        state = client.describe_data_repository_associations(AssociationIds=[name])["Associations"][0]["Lifecycle"]
        if state == "AVAILABLE":
            return
        if state not in ("UPDATING", "CREATING") or time.monotonic() > deadline_s:
            raise CloudError(f"the data repository association {name} is {state}")
        time.sleep(poll_s)


def _run_task(
    aws: Aws, file_system: str, paths: list[str], say: Callable[[str], None], limit_s: float, poll_s: float
) -> int:
    client = aws.client("fsx")
    task = client.create_data_repository_task(
        FileSystemId=file_system, Type="EXPORT_TO_REPOSITORY", Paths=paths, Report={"Enabled": False}
    )["DataRepositoryTask"]["TaskId"]
    say(f"export task {task}: {', '.join(paths)}")
    deadline_s = time.monotonic() + limit_s
    while True:
        found = client.describe_data_repository_tasks(TaskIds=[task])["DataRepositoryTasks"][0]
        counts = found.get("Status", {})
        if found["Lifecycle"] == "SUCCEEDED" and not counts.get("FailedCount"):
            return int(counts.get("SucceededCount", 0))
        if found["Lifecycle"] in ("FAILED", "CANCELED", "SUCCEEDED"):
            why = found.get("FailureDetails", {}).get("Message", "")
            raise CloudError(
                f"export task {task}: {found['Lifecycle']}, {counts.get('FailedCount', 0)} failed {why}"
            )
        if time.monotonic() > deadline_s:
            client.cancel_data_repository_task(TaskId=task)
            raise CloudError(f"export task {task} is still {found['Lifecycle']} after {limit_s:.0f} s")
        time.sleep(poll_s)
