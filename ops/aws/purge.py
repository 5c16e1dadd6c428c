"""The archive's end: bucket, images and stack. Only `destroy --purge` comes here."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from ops.aws.access import Aws, error_code
from ops.aws.inventory import function_log_groups
from ops.errors import CloudError

BATCH = 1000


def empty_and_delete_bucket(aws: Aws) -> int:
    """Every version of every object, then the bucket; returns how many versions went. Raises CloudError."""
    s3, bucket = aws.client("s3"), aws.bucket
    try:
        pages = list(s3.get_paginator("list_object_versions").paginate(Bucket=bucket))
    except ClientError as error:
        if error_code(error) in ("NoSuchBucket", "404"):
            return 0
        raise
    versions = [
        {"Key": item["Key"], "VersionId": item["VersionId"]}
        for page in pages
        for item in [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
    ]
    for start in range(0, len(versions), BATCH):
        batch = versions[start : start + BATCH]
        answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})
        if answer.get("Errors"):
            raise CloudError(f"bucket {bucket}: {answer['Errors'][0]['Key']}: {answer['Errors'][0]['Message']}")
    s3.delete_bucket(Bucket=bucket)
    return len(versions)


def delete_repository(aws: Aws) -> bool:
    """With its images; False when there is none."""
    ecr: Any = aws.client("ecr")
    try:
        ecr.delete_repository(repositoryName=aws.environment.repository, force=True)
    except ClientError as error:
        if error_code(error) == "RepositoryNotFoundException":
            return False
        raise
    return True


def delete_function_logs(aws: Aws) -> int:
    """Log groups that belong to no stack any more; how many they were."""
    names = function_log_groups(aws)
    for name in names:
        aws.client("logs").delete_log_group(logGroupName=name)
    return len(names)
