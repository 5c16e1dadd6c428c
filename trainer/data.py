"""Token shards and batches. A batch is a function of (seed, step, global index); a rank takes its slice.

On disk: `<split>/index.json` with `dtype`, `vocab_size` and `shards: [{file, tokens, sha256}]`, and raw token
files beside it, read by memory map.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trainer.config import DataConfig
from trainer.parent_death import die_with_parent

_MASK = (1 << 64) - 1


class TokenShards:
    """A split's tokens as one long sequence."""

    def __init__(self, directory: Path) -> None:
        """Raises FileNotFoundError or ValueError naming what is missing or does not fit."""
        index = directory / "index.json"
        description = json.loads(index.read_text())
        dtype = np.dtype(description["dtype"])
        self.vocab_size: int = description["vocab_size"]
        self._shards = []
        for entry in description["shards"]:
            path = directory / entry["file"]
            if path.stat().st_size != entry["tokens"] * dtype.itemsize:
                raise ValueError(f"{path}: {path.stat().st_size} bytes, {index} says {entry['tokens']} tokens")
            self._shards.append(np.memmap(path, dtype=dtype, mode="r"))
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def read(self, start: int, count: int) -> np.ndarray:
        """`count` tokens from `start`, across shards, as int64."""
        parts = []
        while count:
            shard = int(np.searchsorted(self._starts, start, side="right")) - 1
            part = self._shards[shard][start - self._starts[shard] :][:count]
            parts.append(np.asarray(part, dtype=np.int64))
            start, count = start + len(part), count - len(part)
        return np.concatenate(parts)


def _mix(value: int) -> int:
    """splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def permute(index: int, count: int, key: int) -> int:
    """A keyed permutation of range(count) without a table: four Feistel rounds, walked until in range."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for round_number in range(4):
            left, right = right, left ^ (_mix(_mix(key ^ round_number) ^ right) & mask)
        index = (left << half) | right
        if index < count:
            return index


class Samples(Dataset[Tensor]):
    """Sample g of an endless sequence: epochs of non-overlapping windows, each epoch in its own order."""

    def __init__(self, directory: Path, sequence_length: int, seed: int) -> None:
        """Raises ValueError when the split is shorter than one window."""
        self._shards = TokenShards(directory)
        self._length = sequence_length
        self._seed = seed
        self.windows = (len(self._shards) - 1) // sequence_length
        if self.windows < 1:
            raise ValueError(f"{directory}: {len(self._shards)} tokens, a sample needs {sequence_length + 1}")

    def __getitem__(self, index: int) -> Tensor:
        """(sequence_length + 1) tokens of the sample with this global index."""
        epoch, position = divmod(index, self.windows)
        window = permute(position, self.windows, _mix(self._seed) ^ epoch)
        return torch.from_numpy(self._shards.read(window * self._length, self._length + 1))


def rank_slice(step: int, global_batch: int, rank: int, world_size: int) -> list[int]:
    """Global sample indices that `rank` computes in `step` (counted from 1)."""
    share = global_batch // world_size
    first = (step - 1) * global_batch + rank * share
    return list(range(first, first + share))


def batches(
    directory: Path, config: DataConfig, *, rank: int, world_size: int, first_step: int, last_step: int
) -> Iterator[Tensor]:
    """One (share, sequence_length + 1) tensor per step. Resuming is starting at another step."""
    samples = Samples(directory, config.sequence_length, config.seed)
    order = [
        rank_slice(step, config.global_batch_size, rank, world_size) for step in range(first_step, last_step + 1)
    ]
    loader = DataLoader(
        samples,
        batch_sampler=order,
        num_workers=config.num_workers,
        worker_init_fn=_bind_worker if config.num_workers else None,
        multiprocessing_context="spawn" if config.num_workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)


def _bind_worker(_: int) -> None:
    """Loader workers leave signals to their trainer and do not outlive it (pytorch#21554, #26072)."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent()
