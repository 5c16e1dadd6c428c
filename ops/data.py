"""Real text that is on every machine, as training input: the Python standard library's own sources, by bytes.

Under `<data>/train/` and `<data>/eval/`: raw little-endian uint16 `.bin` files, and `index.json` with `dtype`,
`vocab_size` and `shards` [{`file`, `tokens`, `sha256`}], which is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VOCAB_SIZE = 256
DTYPE = "<u2"
SHARD_TOKENS = 4 * 1024 * 1024
EVAL_EVERY = 20
"""Every twentieth source file is held out."""
MAX_BYTES = 12 * 1024 * 1024
_LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "lib2to3", "idlelib", "test", "tests"})


@dataclass(frozen=True)
class Prepared:
    """What lies under a data directory."""

    train_tokens: int
    eval_tokens: int
    reused: bool


class NoTextError(Exception):
    """This Python has no standard library in source form."""


def prepare(data: Path) -> Prepared:
    """Make the two parts under `data`, or find them whole. Raises NoTextError, OSError."""
    existing = [_tokens_of(data / part) for part in ("train", "eval")]
    if all(existing):
        return Prepared(existing[0], existing[1], reused=True)
    files = _sources()
    held_out = [path for number, path in enumerate(files) if number % EVAL_EVERY == EVAL_EVERY - 1]
    training = [path for number, path in enumerate(files) if number % EVAL_EVERY != EVAL_EVERY - 1]
    return Prepared(
        train_tokens=write_part(data / "train", (path.read_bytes() for path in training)),
        eval_tokens=write_part(data / "eval", (path.read_bytes() for path in held_out)),
        reused=False,
    )


def write_part(part: Path, texts: Iterable[bytes]) -> int:
    """Write one part's shards and index as a whole; returns its tokens. What was there before is replaced."""
    part.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{part.name}-", dir=part.parent))
    try:
        shards = [_write_shard(staging, number, tokens) for number, tokens in enumerate(_shards(texts))]
        index = {"dtype": "uint16", "vocab_size": VOCAB_SIZE, "shards": shards}
        _write_synced(staging / "index.json", json.dumps(index, indent=2).encode() + b"\n")
        staging.chmod(0o755)
        if part.exists():
            shutil.rmtree(part)
        staging.rename(part)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return sum(int(shard["tokens"]) for shard in shards)


def _sources() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    chosen: list[Path] = []
    total = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        for name in sorted(name for name in names if name.endswith(".py")):
            if total < MAX_BYTES:
                chosen.append(Path(folder) / name)
                total += chosen[-1].stat().st_size
    if len(chosen) < EVAL_EVERY:
        raise NoTextError(f"{root}: fewer than {EVAL_EVERY} Python source files; the demo trains on them")
    return chosen


def _shards(texts: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for text in texts:
        rest += text
        while len(rest) >= SHARD_TOKENS:
            yield rest[:SHARD_TOKENS]
            rest = rest[SHARD_TOKENS:]
    if rest:
        yield rest


def _write_shard(folder: Path, number: int, text: bytes) -> dict[str, str | int]:
    content = np.frombuffer(text, dtype=np.uint8).astype(DTYPE).tobytes()
    name = f"shard-{number:05d}.bin"
    _write_synced(folder / name, content)
    return {"file": name, "tokens": len(text), "sha256": hashlib.sha256(content).hexdigest()}


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _tokens_of(part: Path) -> int:
    """Tokens of a part that is whole; 0 when anything is missing or damaged."""
    try:
        index = json.loads((part / "index.json").read_text())
        for shard in index["shards"]:
            content = (part / shard["file"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != shard["sha256"]:
                return 0
        return sum(int(shard["tokens"]) for shard in index["shards"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
