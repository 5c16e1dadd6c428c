"""Charts of the CDK, rendered by the helm of the deployed layer."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ops.local.aws.cloudformation.errors import ResourceError
from ops.local.aws.kubectl import Object

Properties = Mapping[str, Any]
MEMBER = "helm/helm"
LIMIT_S = 120


def binary_from(layers: list[bytes], tools: Path) -> Path:
    """The helm that one of the function's layers carries, unpacked once."""
    for content in layers:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if MEMBER in archive.namelist():
                folder = tools / hashlib.sha256(content).hexdigest()[:16]
                if not (folder / MEMBER).exists():
                    archive.extract(MEMBER, folder)
                    (folder / MEMBER).chmod(0o755)
                return folder / MEMBER
    raise ResourceError("no layer of the provider's function carries helm")


class Helm:
    """Renders charts; what comes out is applied as any manifest, for helm itself speaks protobuf only.

    So there is no release for `helm list`, and hooks are left out.
    """

    def __init__(self, binary: Path) -> None:
        self._binary = binary

    def render(self, properties: Properties, chart_archive: bytes | None) -> list[Object]:
        """The chart's objects."""
        with tempfile.TemporaryDirectory() as folder:
            chart = _unpacked(chart_archive, Path(folder)) if chart_archive else str(properties["Chart"])
            values = Path(folder) / "values.yaml"
            values.write_text(str(properties.get("Values", "{}")))
            arguments = ["template", str(properties["Release"]), chart, "--no-hooks", "--values", str(values)]
            text = self._run([*arguments, *_options(properties)], Path(folder))
        namespace = str(properties.get("Namespace", "default"))
        return [_placed(found, namespace) for found in yaml.safe_load_all(text) if found]

    def _run(self, arguments: list[str], home: Path) -> str:
        done = subprocess.run(
            [str(self._binary), *arguments],
            env={"PATH": os.defpath, "HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise ResourceError(done.stderr.strip())
        return done.stdout


def _placed(found: Object, namespace: str) -> Object:
    """A chart's objects go where the release goes, unless they say otherwise."""
    found["metadata"].setdefault("namespace", namespace)
    return found


def _options(p: Properties) -> list[str]:
    crds = [] if str(p.get("SkipCrds", False)).lower() == "true" else ["--include-crds"]
    named = (("Namespace", "--namespace"), ("Repository", "--repo"), ("Version", "--version"))
    return crds + [part for key, flag in named if p.get(key) for part in (flag, str(p[key]))]


def _unpacked(archive: bytes, folder: Path) -> str:
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        packed.extractall(folder / "chart")
    return str(folder / "chart")
