"""An environment's world on AWS: its cluster by token, its run directories by way of the archive."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from kubernetes import client

from ops.aws.access import Aws, aws_of, error_code
from ops.aws.eks import cluster_or_error, token
from ops.cluster import Cluster
from ops.files import write_atomically
from ops.options import Call
from ops.runs import RunStore
from ops.world import World

SMALL = ("run.json", "complete.json", "attempts/", "events/", "report/")
"""What a report is made from; checkpoints stay where they are."""


@dataclass(frozen=True)
class ArchivedRuns:
    """Run directories as FSx exports them. New records arrive within minutes of being written."""

    aws: Aws
    bucket: str
    prefix: str
    cache: Path

    def names(self) -> list[str]:
        """Runs that have a directory."""
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix, Delimiter="/"
        )
        folders = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", [])]
        return sorted(folder.removeprefix(self.prefix).rstrip("/") for folder in folders)

    def run_json(self, run: str) -> dict[str, Any] | None:
        """What run.json holds."""
        body = self._read(run, "run.json")
        try:
            content: dict[str, Any] | None = json.loads(body) if body else None
        except ValueError:
            return None
        return content

    def progress(self, run: str) -> tuple[int, bool]:
        """Newest committed step, and whether the target was reached, as far as exported."""
        step = (self._read(run, "progress") or b"0").strip()
        return int(step) if step.isdigit() else 0, self._read(run, "complete.json") is not None

    def _read(self, run: str, name: str) -> bytes | None:
        try:
            body: bytes = self._s3.get_object(Bucket=self.bucket, Key=f"{self.prefix}{run}/{name}")["Body"].read()
        except ClientError as error:
            if error_code(error) in ("NoSuchKey", "NoSuchBucket", "404"):
                return None
            raise
        return body

    def write_run_json(self, run: str, content: Mapping[str, Any]) -> None:
        """Kept here: the file system is out of reach, and the trainer writes its own run.json when it starts."""
        write_atomically(self._submitted(run), json.dumps(content, indent=2) + "\n")

    def _submitted(self, run: str) -> Path:
        return self.cache.parent / "submitted" / f"{run}.json"

    def fetch(self, run: str) -> Path:
        """A copy of what a report is made from, fetched anew."""
        self.cache.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{run}-", dir=self.cache))
        try:
            for key in self._keys(f"{self.prefix}{run}/"):
                relative = key.removeprefix(f"{self.prefix}{run}/")
                if relative.startswith(SMALL):
                    body = self._s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
                    write_atomically(staging / relative, body)
            self._add_what_was_submitted(staging / "run.json", run)
            shutil.rmtree(self.cache / run, ignore_errors=True)
            return staging.rename(self.cache / run)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise

    def _add_what_was_submitted(self, path: Path, run: str) -> None:
        """The reference step time, known only where the run was submitted."""
        if path.exists() and self._submitted(run).exists():
            merged = {**json.loads(self._submitted(run).read_text()), **json.loads(path.read_text())}
            write_atomically(path, json.dumps(merged, indent=2) + "\n")

    def _keys(self, prefix: str) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        return [
            item["Key"] for page in pages for item in page.get("Contents", []) if not item["Key"].endswith("/")
        ]

    @property
    def _s3(self) -> Any:
        return self.aws.client("s3")


def archived_runs(call: Call) -> ArchivedRuns:
    """Run directories in the archive, whether or not anything else of the environment is there."""
    aws = aws_of(call)
    return _archived(call, aws)


def _archived(call: Call, aws: Aws) -> ArchivedRuns:
    exported = next((item for item in call.environment.file_system.associations if item.path == "/runs"), None)
    prefix = f"{call.environment.archive.prefix}/{exported.prefix if exported else 'runs'}/"
    return ArchivedRuns(aws, aws.bucket, prefix, call.state / "archive")


def aws_world(call: Call) -> World:
    """Raises CloudError when the cluster is not there."""
    aws = aws_of(call)
    runs: RunStore = _archived(call, aws)
    return World(call, Cluster(api_client(call, aws), call.environment.namespace), runs)


def api_client(call: Call, aws: Aws) -> client.ApiClient:
    """A client of the cluster's API whose token is made anew before it runs out."""
    found = cluster_or_error(aws)
    authority = call.state / "cluster-ca.pem"
    write_atomically(authority, base64.b64decode(found["certificateAuthority"]["data"]))
    configuration: Any = client.Configuration(host=found["endpoint"])
    configuration.ssl_ca_cert = str(authority)
    configuration.api_key_prefix["authorization"] = "Bearer"

    def refresh(settings: Any) -> None:
        settings.api_key["authorization"] = token(aws)

    configuration.refresh_api_key_hook = refresh
    refresh(configuration)
    return client.ApiClient(configuration)
