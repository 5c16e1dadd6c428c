"""The layout of a rank's arena: the exact image of its `.distcp` file, planned once.

An item of a `.distcp` file is what `torch.save` makes of a tensor: a small zip archive. For a tensor of fixed
dtype and shape everything around the data is constant, so the archives are built once, without the data, and a
save only fills in the data. Each item's data begin at a multiple of 4 KiB (1 KiB if they are smaller than 4), the
first after the item's own offset: where they are follows from `.metadata` alone.

A slot is `[own | shared | tail]`; own and shared are the file image. Own are this rank's shards and
rank-qualified values, shared the small replicated tensors, which rank 0 alone stores (so that others find
them in few blocks), and the tail holds what this rank needs at a restart but another rank's file stores. In each
part what lives on the device comes first, in one range, so that a snapshot goes to the host in large pieces.

Traps: `torch.save` of a small view writes its whole storage, so local tensors must own theirs or be copied; the
zip's CRC costs more than the write (`set_crc32_options(False)`) and would make the image depend on the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import IO, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.distributed_c10d import _get_process_group_store
from torch.distributed.tensor import DTensor
from torch.serialization import get_crc32_options, set_crc32_options

from trainer.checkpoint.records import checksum, data_name
from trainer.checkpoint.state import is_ranked
from trainer.checkpoint.storage import ALIGNMENT_BYTES

T = TypeVar("T")
MARKER = b"archive/data/0"
KEEP_DATA_BYTES = 4096
SMALL_ALIGNMENT_BYTES = 1024
SHARED_BYTES = 1 << 20
"""A replicated tensor up to this size is stored by rank 0; larger ones are spread over the ranks by size."""
LOCAL_HEADER_BYTES = 30


class Part(IntEnum):
    """Of a slot, in order."""

    OWN = 0
    RANKED = 1
    """Host values of this rank, in blocks of their own: another world size finds them without reading shards."""
    SHARED = 2
    TAIL = 3


@dataclass(frozen=True)
class Item:
    """A rank's part of one tensor."""

    fqn: str
    offsets: tuple[int, ...]
    """Where the part begins in the whole tensor."""
    sizes: tuple[int, ...]
    dtype: torch.dtype
    data_at: int
    """Byte of the slot where the data begin."""
    on_device: bool
    part: Part

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return math.prod(self.sizes) * self.dtype.itemsize


@dataclass(frozen=True)
class Fragment:
    """Constant bytes of the image."""

    at: int
    data: bytes


@dataclass(frozen=True)
class Layout:
    """Where everything is. `digest` tells layouts apart; `metadata_file` is every `.metadata`."""

    rank: int
    world_size: int
    items: tuple[Item, ...]
    fragments: tuple[Fragment, ...]
    cuts: list[int]
    """Where the parts begin, and the end of the slot."""
    digest: str
    metadata: Metadata
    metadata_file: bytes

    @property
    def slot_bytes(self) -> int:
        """Memory of one snapshot."""
        return self.cuts[-1]

    @property
    def file_bytes(self) -> int:
        """Size of this rank's file."""
        return self.cuts[-2]

    @property
    def device_spans(self) -> list[tuple[int, int]]:
        """Byte ranges that a device-side snapshot covers: one in each part at most."""
        spans = []
        for part in Part:
            ends = [item.data_at + item.nbytes for item in self.items if item.on_device and item.part == part]
            if ends:
                spans.append((self.cuts[part], max(ends)))
        return spans

    def view(self, item: Item, slot: torch.Tensor) -> torch.Tensor:
        """An item's data inside a slot (a uint8 tensor)."""
        flat = slot[item.data_at : item.data_at + item.nbytes]
        return flat.view(item.dtype).view(item.sizes)


class _Sink(io.RawIOBase):
    """Takes what `torch.save` writes, the tensor's data left out: a big tensor is never touched."""

    def __init__(self, data_bytes: int) -> None:
        self.parts: list[tuple[int, bytes]] = []
        self.end = 0
        self._skip = data_bytes if data_bytes > KEEP_DATA_BYTES else -1

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        size = len(data)
        if size != self._skip:
            self.parts.append((self.end, bytes(data)))
        self.end += size
        return size


@contextmanager
def _constant_archives() -> Iterator[None]:
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


@cache
def archive(sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[list[tuple[int, bytes]], int, int]:
    """What `torch.save` writes around such a tensor: `(parts, offset of the data, total bytes)`."""
    tensor = torch.empty(sizes, dtype=dtype)
    sink = _Sink(tensor.nbytes)
    with _constant_archives():
        torch.save(tensor, cast(IO[bytes], sink))
    head = bytearray()
    for at, part in sink.parts:
        if at != len(head):
            break
        head += part
    name = head.index(MARKER)
    header = name - LOCAL_HEADER_BYTES
    extra = int.from_bytes(head[header + 28 : header + 30], "little")
    data_at = name + len(MARKER) + extra
    parts = [(at, part) for at, part in sink.parts if not data_at <= at < data_at + tensor.nbytes]
    return _joined(parts), data_at, sink.end


def _joined(parts: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    joined: list[tuple[int, bytes]] = []
    for at, part in parts:
        if joined and joined[-1][0] + len(joined[-1][1]) == at:
            at, part = joined[-1][0], joined.pop()[1] + part
        joined.append((at, part))
    return joined


def data_offset(item_at: int, nbytes: int) -> int:
    """Where the data of an item stored at `item_at` begin; the rule that every file of ours obeys."""
    unit = ALIGNMENT_BYTES if nbytes >= ALIGNMENT_BYTES else SMALL_ALIGNMENT_BYTES
    return (item_at // unit + 1) * unit


def align(offset: int) -> int:
    """Up to the next multiple of 4 KiB."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds; the same storage, no gradient."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def stamp_into(slot: torch.Tensor, layout: Layout) -> None:
    """Write the constant bytes of the image into a slot, on whatever device it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a read-only buffer is only read
        for fragment in layout.fragments:
            source = torch.frombuffer(fragment.data, dtype=torch.uint8)
            slot[fragment.at : fragment.at + len(fragment.data)].copy_(source)


def plan(device: dict[str, torch.Tensor], host: dict[str, torch.Tensor], group: dist.ProcessGroup) -> Layout:
    """Agree on one layout. A collective over `group`, at a start only; no save ever plans again.

    Raises ValueError naming keys that are listed twice, or on some ranks only.
    """
    if both := sorted(set(device) & set(host)):
        raise ValueError(f"listed as device and as host state: {', '.join(both)}")
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    planner = DefaultSavePlanner()
    planner.set_up_planner({**device, **host}, None, rank == 0)
    mine = planner.create_local_plan()
    offered = dataclasses.replace(mine, items=[item for item in mine.items if rank == 0 or not _shared(item)])
    plans = gather((offered, sorted({*device, *host})), group)
    _check_keys([set(keys) for _, keys in plans])
    final, metadata = planner.create_global_plan([plan for plan, _ in plans])
    stored = {_key(item) for item in final[rank].items}
    builder = _Builder(rank)
    parted = sorted((_part(item, stored), item.index.fqn not in device, n) for n, item in enumerate(mine.items))
    for part, on_host, n in parted:
        builder.add(mine.items[n], part, not on_host)
    tables = gather(builder.table, group)
    storage = {index: info for table in tables for index, info in table.items()}
    # torch 2.11 has no version field
    version: dict[str, Any] = {"version": "1.0.0"} if hasattr(metadata, "version") else {}
    return builder.finish(world_size, dataclasses.replace(metadata, storage_data=storage, **version))


def gather(value: T, group: dist.ProcessGroup) -> list[T]:
    """Every rank's value, by rank. Raises RuntimeError, within the group's timeout, naming who did not come."""
    came = _come(group)
    values: list[T] = [value] * dist.get_world_size(group)
    try:
        dist.all_gather_object(values, value, group=group)
    except RuntimeError as error:
        raise RuntimeError(f"{error} ({_missing(group, came)})") from error
    return values


def _come(group: dist.ProcessGroup) -> int:
    """Sign the roll, how often we came: gloo's timeouts don't say whom they waited for (marin#8534)."""
    with contextlib.suppress(RuntimeError, KeyError):  # a store that is gone costs the name, not the collective
        return int(_get_process_group_store(group).add(f"came/{dist.get_rank(group)}", 1))
    return 0


def _missing(group: dist.ProcessGroup, came: int) -> str:
    with contextlib.suppress(RuntimeError, KeyError):
        store = _get_process_group_store(group)
        ranks = range(dist.get_world_size(group))
        return f"did not come: ranks {[rank for rank in ranks if store.add(f'came/{rank}', 0) < came]}"
    return "the store that knows who came is gone"


def _key(item: WriteItem) -> tuple[str, tuple[int, ...]]:
    return item.index.fqn, tuple(item.index.offset or ())


def _nbytes(item: WriteItem) -> int:
    assert item.tensor_data is not None
    return math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize


def _shared(item: WriteItem) -> bool:
    replicated = item.type == WriteItemType.TENSOR and not is_ranked(item.index.fqn)
    return replicated and _nbytes(item) <= SHARED_BYTES


def _part(item: WriteItem, stored: set[tuple[str, tuple[int, ...]]]) -> Part:
    if _key(item) not in stored:
        return Part.TAIL
    if _shared(item):
        return Part.SHARED
    return Part.RANKED if is_ranked(item.index.fqn) else Part.OWN


def _check_keys(keys: list[set[str]]) -> None:
    common = [{key for key in names if not is_ranked(key)} for names in keys]
    everywhere = set.intersection(*common)
    partly = {key: [rank for rank, names in enumerate(common) if key not in names] for key in set().union(*common)}
    if missing := [f"{key} (not on ranks {partly[key]})" for key in sorted(partly.keys() - everywhere)]:
        raise ValueError(
            f"listed on some ranks only: {'; '.join(missing)}; per-rank state needs '.rank<r>.' names"
        )


class _Builder:
    """Lays items out one after another, part by part."""

    def __init__(self, rank: int) -> None:
        self.table: dict[MetadataIndex, _StorageInfo] = {}
        self._rank = rank
        self._items: list[Item] = []
        self._fragments: list[Fragment] = []
        self._end = 0
        self._cuts = [0]

    def add(self, write: WriteItem, part: Part, on_device: bool) -> None:
        assert write.tensor_data is not None
        self._open(part)
        sizes, dtype = tuple(write.tensor_data.chunk.sizes), write.tensor_data.properties.dtype
        if part is Part.TAIL:
            data_at, self._end = self._end, align(self._end + _nbytes(write))
        else:
            data_at = self._add_archive(write, sizes, dtype)
        offsets = tuple(write.tensor_data.chunk.offsets)
        self._items.append(Item(write.index.fqn, offsets, sizes, dtype, data_at, on_device, part))

    def _add_archive(self, write: WriteItem, sizes: tuple[int, ...], dtype: torch.dtype) -> int:
        parts, head_bytes, total = archive(sizes, dtype)
        data_at = data_offset(self._end, _nbytes(write))
        while data_at - head_bytes < self._end:
            data_at = data_offset(data_at, _nbytes(write))
        at = data_at - head_bytes
        if data_offset(at, _nbytes(write)) != data_at:
            raise ValueError(f"{write.index.fqn}: torch writes {head_bytes} bytes before its data; too many")
        self._fragments += [Fragment(at + offset, part) for offset, part in parts]
        self.table[write.index] = _StorageInfo(data_name(self._rank), at, total)
        self._end = at + total
        return data_at

    def _open(self, part: int) -> None:
        while len(self._cuts) <= part:
            self._end = align(self._end)
            self._cuts.append(self._end)

    def finish(self, world_size: int, metadata: Metadata) -> Layout:
        self._open(len(Part))
        shape = [(i.fqn, i.offsets, i.sizes, str(i.dtype), i.data_at, i.on_device) for i in self._items]
        constant = [(f.at, checksum(f.data)) for f in self._fragments]
        return Layout(
            rank=self._rank,
            world_size=world_size,
            items=tuple(self._items),
            fragments=tuple(self._fragments),
            cuts=self._cuts,
            digest=checksum(repr((shape, constant, self._cuts, world_size)).encode()),
            metadata=metadata,
            metadata_file=pickle.dumps(metadata),
        )
