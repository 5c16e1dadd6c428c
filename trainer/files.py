"""Small files that must be whole or absent, and, where it is said, also after a power cut."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def temporary_beside(path: Path) -> Path:
    """A name for what is to become `path`, of this process alone.

    With the host's name, which a pod's is: pods have process numbers of their own and start alike, so on shared
    storage two of them may well have the same.
    """
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def write_whole(path: Path, data: bytes) -> None:
    """Temporary file and rename: readers find all or nothing. Raises OSError; then `path` is as it was."""
    _write(path, data, durable=False)


def write_durably(path: Path, data: bytes) -> None:
    """The same, with fsync of the file and of its directory. Raises OSError; then `path` is as it was."""
    _write(path, data, durable=True)
    sync_directory(path.parent)


def _write(path: Path, data: bytes, *, durable: bool) -> None:
    temporary = temporary_beside(path)
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Make names in `path` durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
