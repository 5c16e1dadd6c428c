"""Fill a slot from a generation on storage: only the blocks that this rank needs, each verified before it is used.

Saved by as many ranks with the same layout, a rank's file *is* its slot: blocks are read in place, and the bytes
read are those stored. Otherwise (another world size, another torch) the items are found through `.metadata`, and
the parts that overlap are copied out of each block.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from trainer.checkpoint.layout import LOCAL_HEADER_BYTES, MARKER, Item, Layout, Part, data_offset
from trainer.checkpoint.records import (
    COMMIT,
    METADATA,
    Checksum,
    Commit,
    DamageError,
    FileRecord,
    block_spans,
    checksum,
    data_name,
    load,
)
from trainer.checkpoint.state import is_ranked

THREADS = max(4, min(16, os.cpu_count() or 1))
"""Also on few cores: what waits for the storage computes nothing."""
HEADER_BYTES = 4096
PIECE_BYTES = 1 << 20
"""Read and hashed at a time: small enough for a cache, large enough for threads not to queue for the GIL."""


class MismatchError(Exception):
    """Model and generation don't fit; no older generation would. Names every key."""


@dataclass(frozen=True)
class Segment:
    """Bytes of a file that belong somewhere in the slot."""

    at: int
    nbytes: int
    to: int


@dataclass
class Filling:
    """What a load did."""

    read_bytes: int = 0
    missing: set[str] = field(default_factory=set)
    """Keys of this rank that the generation does not have, because it had fewer ranks."""
    sums: list[str] | None = None
    """Checksums of the file image, if it was taken over as it is."""


def read_commit(directory: Path) -> Commit:
    """The commit record, checked against its directory. Raises DamageError."""
    record = load(Commit, directory / COMMIT)
    if record.generation != directory.name:
        raise DamageError(directory / COMMIT, f"belongs to {record.generation}")
    return record


Ready = Callable[[int, int], None]
"""Told, from any thread, which bytes of the slot are verified."""


def fill_from_storage(directory: Path, layout: Layout, slot: torch.Tensor, ready: Ready | None = None) -> Filling:
    """Bring a generation into `slot`. Raises DamageError naming the file, or MismatchError naming keys."""
    commit = read_commit(directory)
    metadata = _metadata(directory, commit, layout)
    filling = Filling()
    wanted = list(layout.items)
    blocks: list[_Block] = []
    own = data_name(layout.rank)
    if (
        commit.world_size == layout.world_size
        and own in commit.files
        and commit.files[own].layout == layout.digest
    ):
        wanted = [item for item in wanted if item.part is Part.TAIL]
        blocks += _whole(directory / own, commit.files[own])
        filling.sums = commit.files[own].sums
    else:
        filling.missing = compare(layout.metadata, metadata, commit.world_size == layout.world_size)
    found = [item for item in wanted if item.fqn not in filling.missing]
    blocks += _partial(directory, commit, _segments(directory, metadata, commit, found))
    filling.read_bytes = _read_all(blocks, slot, ready)
    return filling


def _metadata(directory: Path, commit: Commit, layout: Layout) -> Metadata:
    """The generation's `.metadata`; our own if it is byte for byte the same. Rank 0 also checks the file then."""
    path, expected = directory / METADATA, commit.metadata.sums
    known = bool(expected) and checksum(layout.metadata_file) == expected[0]
    if known and layout.rank != 0:
        return layout.metadata
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DamageError(path, error.strerror or str(error)) from error
    if expected and checksum(data) != expected[0]:
        raise DamageError(path, "its checksum is not that of the commit record")
    return layout.metadata if known else _unpickle(data, path)


class _Unpickler(pickle.Unpickler):
    """Loads what `.metadata` consists of and nothing else: a pickle on shared storage (pytorch#127351)."""

    SAFE = ("torch.distributed.checkpoint.", "torch.distributed.tensor.")

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith(self.SAFE) or (module, name) in {
            ("torch", "Size"),
            ("torch", "device"),
            ("torch.serialization", "_get_layout"),
            ("collections", "OrderedDict"),
            ("pathlib", "PosixPath"),
        }:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"refuses {module}.{name}")


def _unpickle(data: bytes, path: Path) -> Metadata:
    try:
        metadata = _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # pickle raises whatever its input makes it call
        raise DamageError(path, f"not a checkpoint's metadata: {error}") from error
    if not isinstance(metadata, Metadata):
        raise DamageError(path, f"holds a {type(metadata).__name__}")
    return metadata


def compare(ours: Metadata, theirs: Metadata, same_world: bool) -> set[str]:
    """Strict both ways. Returns rank-qualified keys that only we have; raises MismatchError for all else."""
    mine, saved = _shapes(ours), _shapes(theirs)
    problems = [f"{key}: is {mine[key]} here, {saved[key]} in the generation" for key in _differing(mine, saved)]
    absent, extra = mine.keys() - saved.keys(), saved.keys() - mine.keys()
    allowed = set() if same_world else {key for key in absent | extra if is_ranked(key)}
    problems += [f"{key}: not in the generation" for key in sorted(absent - allowed)]
    problems += [f"{key}: in the generation, not in the model" for key in sorted(extra - allowed)]
    if problems:
        raise MismatchError("the generation does not fit the model:\n  " + "\n  ".join(problems))
    return absent & allowed


def _shapes(metadata: Metadata) -> dict[str, str]:
    return {
        key: f"{value.properties.dtype} {tuple(value.size)}"
        if isinstance(value, TensorStorageMetadata)
        else "bytes"
        for key, value in metadata.state_dict_metadata.items()
    }


def _differing(mine: dict[str, str], saved: dict[str, str]) -> list[str]:
    return sorted(key for key in mine.keys() & saved.keys() if mine[key] != saved[key])


@dataclass(frozen=True)
class _Block:
    """A block to read. In place if it has no segments."""

    path: Path
    start: int
    end: int
    sum: str | None
    segments: tuple[Segment, ...] = ()


def _whole(path: Path, record: FileRecord) -> list[_Block]:
    spans = block_spans(record.cuts)
    return [_Block(path, a, b, total) for (a, b), total in zip(spans, record.sums, strict=True)]


def _partial(directory: Path, commit: Commit, segments: dict[str, list[Segment]]) -> list[_Block]:
    """Cut segments at the borders of blocks."""
    blocks = []
    for name, wanted in segments.items():
        record = commit.files[name]
        spans = block_spans(record.cuts)
        per_block: dict[int, list[Segment]] = defaultdict(list)
        for index, segment in _cut(spans, sorted(wanted, key=lambda s: s.at)):
            per_block[index].append(segment)
        for index, parts in per_block.items():
            expected = record.sums[index] if record.sums else None
            blocks.append(_Block(directory / name, *spans[index], expected, tuple(parts)))
    return blocks


def _cut(spans: list[tuple[int, int]], segments: Iterable[Segment]) -> Iterator[tuple[int, Segment]]:
    index = 0
    for segment in segments:
        while spans[index][1] <= segment.at:
            index += 1
        at, end, block = segment.at, segment.at + segment.nbytes, index
        while at < end:
            upto = min(end, spans[block][1])
            yield block, Segment(at, upto - at, segment.to + at - segment.at)
            at, block = upto, block + 1


def _segments(directory: Path, metadata: Metadata, commit: Commit, items: list[Item]) -> dict[str, list[Segment]]:
    found: dict[str, list[Segment]] = defaultdict(list)
    for item in items:
        table = metadata.state_dict_metadata[item.fqn]
        assert isinstance(table, TensorStorageMetadata)
        for chunk in table.chunks:
            overlap = _overlap(item, tuple(chunk.offsets), tuple(chunk.sizes))
            if overlap is None:
                continue
            info = metadata.storage_data[MetadataIndex(item.fqn, chunk.offsets)]
            nbytes = item.dtype.itemsize * chunk.sizes.numel()
            verified = bool(commit.files[info.relative_path].sums)
            path = directory / info.relative_path
            data_at = data_offset(info.offset, nbytes) if verified else _find_data(path, info.offset)
            found[info.relative_path] += _box(item, chunk.offsets, chunk.sizes, overlap, data_at)
    return found


def _find_data(path: Path, at: int) -> int:
    """Where the data of an archive begin that torch's own writer laid out."""
    with path.open("rb") as file:
        file.seek(at)
        head = file.read(HEADER_BYTES)
    name = head.index(MARKER)
    extra = name - LOCAL_HEADER_BYTES + 28
    return at + name + len(MARKER) + int.from_bytes(head[extra : extra + 2], "little")


Box = list[tuple[int, int]]


def _overlap(item: Item, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Box | None:
    """The part of the whole tensor that both have, as (begin, end) by dimension; None if empty."""
    box = [
        (max(a, b), min(a + n, b + m)) for a, n, b, m in zip(item.offsets, item.sizes, offsets, sizes, strict=True)
    ]
    return None if any(begin >= end for begin, end in box) else box


def _box(item: Item, offsets: Iterable[int], sizes: Iterable[int], box: Box, data_at: int) -> list[Segment]:
    """A box of a tensor as runs of bytes that are contiguous in the file and in the slot."""
    offsets, sizes, width = tuple(offsets), tuple(sizes), item.dtype.itemsize
    if not box:
        return [Segment(data_at, width, item.data_at)]
    inner = len(box) - 1
    while inner > 0 and box[inner] == _extent(offsets, sizes, inner) == _extent(item.offsets, item.sizes, inner):
        inner -= 1
    # dimensions after `inner` are whole on both sides, so a run spans `inner` and all after it
    source, target = _strides(sizes), _strides(item.sizes)
    run = (box[inner][1] - box[inner][0]) * source[inner]
    segments = []
    for outer in product(*(range(*box[d]) for d in range(inner))):
        index = (*outer, box[inner][0])
        read = sum((i - o) * s for i, o, s in zip(index, offsets, source, strict=False))
        put = sum((i - o) * s for i, o, s in zip(index, item.offsets, target, strict=False))
        segments.append(Segment(data_at + read * width, run * width, item.data_at + put * width))
    return segments


def _extent(offsets: tuple[int, ...], sizes: tuple[int, ...], dimension: int) -> tuple[int, int]:
    return offsets[dimension], offsets[dimension] + sizes[dimension]


def _strides(sizes: tuple[int, ...]) -> list[int]:
    strides = [1] * len(sizes)
    for d in range(len(sizes) - 2, -1, -1):
        strides[d] = strides[d + 1] * sizes[d + 1]
    return strides


class _Files:
    """Descriptors, opened once. Raises DamageError."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}
        self._lock = threading.Lock()

    def get(self, path: Path) -> int:
        with self._lock:
            if path not in self._open:
                self._open[path] = os.open(path, os.O_RDONLY)
            return self._open[path]

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)


def as_memory(slot: torch.Tensor) -> memoryview:
    """The bytes of a slot."""
    return memoryview(cast(Any, slot.numpy()))


def _read_all(blocks: list[_Block], slot: torch.Tensor, ready: Ready | None) -> int:
    """Read, verify and place every block, in parallel; returns the bytes read."""
    memory, files = as_memory(slot), _Files()

    def read(block: _Block) -> int:
        size = block.end - block.start
        into = memoryview(bytearray(size)) if block.segments else memory[block.start : block.end]
        _read_block(files, block, into)
        for segment in block.segments:
            at = segment.at - block.start
            memory[segment.to : segment.to + segment.nbytes] = into[at : at + segment.nbytes]
            if ready is not None:
                ready(segment.to, segment.to + segment.nbytes)
        if ready is not None and not block.segments:
            ready(block.start, block.end)
        return size

    try:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="read") as pool:
            return sum(pool.map(read, blocks))
    finally:
        files.close()


def _read_block(files: _Files, block: _Block, into: memoryview) -> None:
    """Each piece is hashed right after it was read, while a cache still holds it (docs/results/restore-cpu.md)."""
    total, done = Checksum(), 0
    try:
        fd = files.get(block.path)
        while done < len(into):
            got = os.preadv(fd, [into[done : done + PIECE_BYTES]], block.start + done)
            if got == 0:
                raise DamageError(block.path, f"ends at byte {block.start + done}")
            total.update(into[done : done + got])
            done += got
    except OSError as error:
        raise DamageError(block.path, error.strerror or str(error)) from error
    if block.sum is not None and total.hexdigest() != block.sum:
        raise DamageError(block.path, f"bytes {block.start} to {block.end} do not match their checksum")


def verify_slot(
    slot: torch.Tensor, cuts: list[int], sums: list[str], path: Path, ready: Ready | None = None
) -> None:
    """Check a slot of the arena, in parallel. Raises DamageError."""
    memory = as_memory(slot)

    def verify(block: tuple[tuple[int, int], str]) -> None:
        (start, end), expected = block
        if checksum(memory[start:end]) != expected:
            raise DamageError(path, f"bytes {start} to {end} of the slot do not match their checksum")
        if ready is not None:
            ready(start, end)

    with ThreadPoolExecutor(THREADS, thread_name_prefix="verify") as pool:
        for _ in pool.map(verify, zip(block_spans(cuts), sums, strict=True)):
            pass


def hash_slot(slot: torch.Tensor, cuts: list[int]) -> list[str]:
    """The checksums of a slot's blocks."""
    memory = as_memory(slot)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="hash") as pool:
        return list(pool.map(lambda span: checksum(memory[span[0] : span[1]]), block_spans(cuts)))
