"""The JSON records of the protocol, each sealed with its own checksum. Imports no torch.

- `attempts/<n>.json`: attempt n exists, and where it started from.
- `ack.<rank>.json`: this rank's file is durable, with the checksums of its blocks.
- `commit.json`: the generation exists. Written last; nothing else says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import xxhash

SCHEMA = 1
BLOCK_BYTES = 16 << 20
"""Bytes under one checksum: small enough that a resharded load need not read whole files."""
COMMIT = "commit.json"
METADATA = ".metadata"
Tier = Literal["storage", "memory", "none"]
R = TypeVar("R", bound="Attempt | Ack | Commit | Slot")


class DamageError(Exception):
    """A file is not what was written. `path` names it."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = str(path)
        self.reason = reason

    def __reduce__(self) -> tuple[type[DamageError], tuple[str, str]]:
        return DamageError, (self.path, self.reason)


def checksum(data: bytes | memoryview) -> str:
    """XXH3-64 in hex: 16 GB/s on one core, without the GIL; crc32 reached 2 GB/s beside it."""
    return str(xxhash.xxh3_64_hexdigest(data))


Checksum = xxhash.xxh3_64
"""The same, fed piece by piece: `update`, then `hexdigest`."""


def block_spans(cuts: list[int]) -> list[tuple[int, int]]:
    """The blocks under one checksum each; none crosses a cut."""
    return [
        (at, min(at + BLOCK_BYTES, end)) for start, end in pairwise(cuts) for at in range(start, end, BLOCK_BYTES)
    ]


def data_name(rank: int) -> str:
    """A rank's file, named as torch's own writer names it."""
    return f"__{rank}_0.distcp"


def ack_name(rank: int) -> str:
    """A rank's acknowledgement."""
    return f"ack.{rank}.json"


def failure_name(rank: int) -> str:
    """Left by a rank's writer that gave up, so that rank 0's need not wait."""
    return f"fail.{rank}.json"


@dataclass(frozen=True)
class Attempt:
    """Attempt `attempt` started from generation `origin` (a name, or None for nothing).

    `ancestors` are the states behind the origin, newest first: where the origin's attempt started from, and so on.
    """

    attempt: int
    origin: str | None
    tier: Tier
    step: int
    world_size: int
    wall_s: float
    layer: str = ""
    ancestors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FileRecord:
    """One file of a generation: its blocks lie between `cuts`, the last of which is its size.

    `sums` is empty for the comparison writers, whose files are not verified.
    """

    layout: str
    cuts: list[int]
    sums: list[str]

    @property
    def bytes(self) -> int:
        """The file's size."""
        return self.cuts[-1]


@dataclass(frozen=True)
class Ack:
    """A rank's file is durable."""

    generation: str
    rank: int
    file: FileRecord
    write_s: float
    fsync_s: float


@dataclass(frozen=True)
class Commit:
    """A generation is whole. `origin` repeats the attempt's, so the chain survives a lost attempt record."""

    generation: str
    step: int
    attempt: int
    origin: str | None
    world_size: int
    files: dict[str, FileRecord]
    metadata: FileRecord
    writer: str
    wall_s: float

    @property
    def bytes(self) -> int:
        """Stored bytes."""
        return self.metadata.bytes + sum(record.bytes for record in self.files.values())


@dataclass(frozen=True)
class Slot:
    """A slot of the arena holds a whole snapshot. Lies beside the arena, in memory."""

    run: str
    pod: str
    boot: str
    rank: int
    world_size: int
    attempt: int
    step: int
    layout: str
    cuts: list[int]
    """Ascending offsets in the slot: 0, shared part, end of the file image, end of the slot."""
    sums: list[str]

    @property
    def file_cuts(self) -> list[int]:
        """Those of the file image."""
        return self.cuts[:-1]


_ON_DISK = {"origin": "from"}
"""Names of fields on disk that are not Python's to use."""


def seal(record: Attempt | Ack | Commit | Slot) -> bytes:
    """The record as JSON with its checksum."""
    fields = {_ON_DISK.get(name, name): value for name, value in asdict(record).items()}
    body = {"schema": SCHEMA, "kind": type(record).__name__, **fields}
    return json.dumps({**body, "checksum": _digest(body)}, separators=(",", ":")).encode()


def unseal(kind: type[R], data: bytes, path: Path) -> R:
    """The record in `data`. Raises DamageError."""
    try:
        body = json.loads(data)
        found = body.pop("checksum")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamageError(path, f"torn or not a record ({error!r})") from error
    if found != _digest(body):
        raise DamageError(path, "its checksum does not match its content")
    if body.pop("schema") != SCHEMA or body.pop("kind") != kind.__name__:
        raise DamageError(path, "another schema or kind of record")
    names = {word: name for name, word in _ON_DISK.items()}
    return _build(kind, {names.get(word, word): value for word, value in body.items()}, path)


def _build(kind: type[R], body: dict[str, Any], path: Path) -> R:
    try:
        if kind is Commit:
            body["files"] = {name: FileRecord(**value) for name, value in body["files"].items()}
            body["metadata"] = FileRecord(**body["metadata"])
        if kind is Ack:
            body["file"] = FileRecord(**body["file"])
        return kind(**body)
    except (TypeError, KeyError, AttributeError) as error:
        raise DamageError(path, f"fields are missing or unknown ({error})") from error


def load(kind: type[R], path: Path) -> R:
    """The record at `path`. Raises DamageError, also when it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamageError(path, error.strerror or str(error)) from error
    return unseal(kind, data, path)


def _digest(body: Mapping[str, Any]) -> str:
    return checksum(json.dumps(body, separators=(",", ":"), sort_keys=True).encode())
