"""The image that stands for this working tree: `--local` needs none built, and a run must still name one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import trainer
from environments.environment import Environment


def tree_digest(root: Path | None = None) -> str:
    """sha256 over names and bytes of everything that goes into the image."""
    root = root or Path(trainer.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def local_image(environment: Environment) -> str:
    """`local/<repository>@sha256:…` of the working tree."""
    return f"local/{environment.repository}@sha256:{tree_digest()}"
