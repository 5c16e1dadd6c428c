"""A data set into the archive's input prefix, from where FSx imports it."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from botocore.exceptions import ClientError

from ops.aws.access import Aws, error_code
from ops.errors import InvalidInputError

THREADS = 8


def check_data_set(folder: Path) -> list[Path]:
    """The files of a data set in upload order: indexes last, so that no reader finds one before its shards.

    Raises InvalidInputError with everything that is missing.
    """
    problems, files = [], []
    for part in ("train", "eval"):
        index = folder / part / "index.json"
        try:
            shards = [folder / part / shard["file"] for shard in json.loads(index.read_text())["shards"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            problems.append(f"{index}: {error}")
            continue
        problems += [f"{path}: is named by {index.name} and not there" for path in shards if not path.is_file()]
        files += shards
    if problems:
        raise InvalidInputError(
            f"{folder} is not a data set",
            details=problems,
            fix="train/ and eval/, each with index.json and its shards",
        )
    return [*files, folder / "train" / "index.json", folder / "eval" / "index.json"]


def put(aws: Aws, folder: Path, say: Callable[[str], None]) -> str:
    """Upload what has changed by size; returns the prefix. Raises InvalidInputError, botocore's errors."""
    files = check_data_set(folder)
    imported = next((item for item in aws.environment.file_system.associations if item.path == "/data"), None)
    prefix = f"{aws.environment.archive.prefix}/{imported.prefix if imported else 'input'}/"
    shards, indexes = files[:-2], files[-2:]
    with ThreadPoolExecutor(THREADS) as pool:
        for path, sent in zip(shards, pool.map(lambda path: _put(aws, folder, path, prefix), shards), strict=True):
            say(f"{'sent' if sent else 'there already'}: {path.relative_to(folder)}")
    for path in indexes:
        aws.client("s3").upload_file(str(path), aws.bucket, prefix + str(path.relative_to(folder)))
    return f"s3://{aws.bucket}/{prefix}"


def _put(aws: Aws, folder: Path, path: Path, prefix: str) -> bool:
    key, s3 = prefix + str(path.relative_to(folder)), aws.client("s3")
    try:
        if s3.head_object(Bucket=aws.bucket, Key=key)["ContentLength"] == path.stat().st_size:
            return False
    except ClientError as error:
        if error_code(error) not in ("404", "NoSuchKey"):
            raise
    s3.upload_file(str(path), aws.bucket, key)
    return True
