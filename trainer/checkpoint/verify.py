"""Is a generation whole? Every byte, against the checksums made where the bytes were born. Imports no torch."""

from __future__ import annotations

import mmap
from pathlib import Path

from trainer.checkpoint.records import (
    COMMIT,
    METADATA,
    Commit,
    DamageError,
    FileRecord,
    block_spans,
    checksum,
    load,
)


def verify_generation(directory: Path) -> list[DamageError]:
    """Everything that is wrong with it; empty if it is whole. Without a commit record it does not exist."""
    try:
        record = load(Commit, directory / COMMIT)
    except DamageError as error:
        return [error]
    if record.generation != directory.name:
        return [DamageError(directory / COMMIT, f"belongs to {record.generation}")]
    files = {**record.files, METADATA: record.metadata}
    return [problem for name, expected in files.items() for problem in _verify_file(directory / name, expected)]


def _verify_file(path: Path, expected: FileRecord) -> list[DamageError]:
    try:
        size = path.stat().st_size
        if size != expected.bytes:
            return [DamageError(path, f"{size} bytes instead of {expected.bytes}")]
        if not expected.sums:
            return []
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            return _verify_blocks(path, memoryview(content), expected)
    except OSError as error:
        return [DamageError(path, error.strerror or str(error))]


def _verify_blocks(path: Path, content: memoryview, expected: FileRecord) -> list[DamageError]:
    with content:
        return [
            DamageError(path, f"bytes {start} to {end} do not match their checksum")
            for (start, end), total in zip(block_spans(expected.cuts), expected.sums, strict=True)
            if checksum(content[start:end]) != total
        ]
