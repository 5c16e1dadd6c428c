"""The training image: built by Docker where there is an engine, by CodeBuild where there is none."""

from __future__ import annotations

import base64
import io
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from infra.image_build import project_name, source_key
from ops.aws.access import Aws, error_code
from ops.errors import CloudError, InvalidInputError
from ops.tree_digest import tree_digest

PROJECT_ROOT = Path(__file__).parent.parent.parent
SOURCES = ("trainer", "docker", "LICENSE")
"""What the Dockerfile copies; no credentials and no state can be among it."""
BUILD_LIMIT_S = 2 * 3600.0
POLL_S = 10.0
TAG_LENGTH = 16

Say = Callable[[str], None]


def tag() -> str:
    """Of the working tree: the same content gives the same tag, which the registry never lets change."""
    return tree_digest()[:TAG_LENGTH]


def has_engine() -> bool:
    """Docker is there and answers."""
    docker = shutil.which("docker")
    return docker is not None and _docker("info", check=False).returncode == 0


def build(aws: Aws, say: Say) -> str:
    """Build here; returns `repository:tag`. Raises InvalidInputError without an engine."""
    if not has_engine():
        raise InvalidInputError(
            "there is no container engine here",
            fix="`steadfast image push` builds with CodeBuild when `archive.codebuild: true` is set and deployed",
        )
    name = f"{repository_uri(aws)}:{tag()}"
    say(f"building {name}")
    done = _docker("build", "--file", "docker/Dockerfile", "--tag", name, ".", check=False)
    if done.returncode:
        raise CloudError("docker build failed", details=done.stderr.splitlines()[-15:])
    return name


def push(aws: Aws, say: Say) -> str:
    """Build and push; returns `repository@sha256:…`. Raises InvalidInputError or CloudError."""
    if not has_engine():
        return _by_codebuild(aws, say)
    name = build(aws, say)
    _log_in(aws)
    say(f"pushing {name}")
    done = _docker("push", name, check=False)
    if done.returncode:
        raise CloudError("docker push failed", details=done.stderr.splitlines()[-5:])
    return _docker("image", "inspect", "--format", "{{index .RepoDigests 0}}", name).stdout.strip()


def repository_uri(aws: Aws) -> str:
    """Of the environment's repository. Raises InvalidInputError when it is not deployed."""
    try:
        found = aws.client("ecr").describe_repositories(repositoryNames=[aws.environment.repository])
    except ClientError as error:
        if error_code(error) != "RepositoryNotFoundException":
            raise
        raise InvalidInputError(
            f"there is no image repository {aws.environment.repository}", fix="`steadfast deploy` makes it"
        ) from None
    return str(found["repositories"][0]["repositoryUri"])


def _log_in(aws: Aws) -> None:
    grant = aws.client("ecr").get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(grant["authorizationToken"]).decode().partition(":")
    done = _docker(
        "login", "--username", user, "--password-stdin", grant["proxyEndpoint"], given=password, check=False
    )
    if done.returncode:
        raise CloudError("docker login failed", details=done.stderr.splitlines()[-3:])


def _docker(*arguments: str, given: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments], cwd=PROJECT_ROOT, input=given, capture_output=True, text=True, check=check
    )


def _by_codebuild(aws: Aws, say: Say) -> str:
    environment = aws.environment
    if not environment.archive.codebuild:
        raise InvalidInputError(
            "there is no container engine here, and the environment has no CodeBuild project",
            fix="set `archive.codebuild: true` and `steadfast deploy`, or run this where Docker runs",
        )
    repository_uri(aws)
    aws.client("s3").put_object(Bucket=aws.bucket, Key=source_key(environment), Body=source_archive())
    client: Any = aws.client("codebuild")
    started = client.start_build(
        projectName=project_name(environment),
        environmentVariablesOverride=[{"name": "TAG", "value": tag(), "type": "PLAINTEXT"}],
    )["build"]["id"]
    say(f"CodeBuild {started}")
    deadline_s = time.monotonic() + BUILD_LIMIT_S
    while time.monotonic() < deadline_s:
        found = client.batch_get_builds(ids=[started])["builds"][0]
        if found["buildStatus"] == "SUCCEEDED":
            return _exported(found)
        if found["buildStatus"] != "IN_PROGRESS":
            where = found.get("logs", {}).get("deepLink", "")
            raise CloudError(f"CodeBuild {started}: {found['buildStatus']}", details=[where] if where else [])
        time.sleep(POLL_S)
    raise CloudError(f"CodeBuild {started} is not done after {BUILD_LIMIT_S / 3600:.0f} h")


def _exported(build_: dict[str, Any]) -> str:
    for variable in build_.get("exportedEnvironmentVariables", []):
        if variable["name"] == "IMAGE" and "@sha256:" in variable["value"]:
            return str(variable["value"])
    raise CloudError(f"CodeBuild {build_['id']} succeeded and exported no digest")


def source_archive(root: Path = PROJECT_ROOT) -> bytes:
    """A zip of what the image is built from, the same bytes for the same content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in SOURCES:
            path = root / source
            files = sorted(path.rglob("*")) if path.is_dir() else [path]
            for file in files:
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.writestr(zipfile.ZipInfo(str(file.relative_to(root))), file.read_bytes())
    return buffer.getvalue()
