"""Which rank is slow: each rank's own time, without what it waits for others, compared once a window.

In a synchronous job all ranks' steps take equally long, so a step's time says nothing. A rank's own time is what
it spends before its first collective (data, host work) and inside the blocks' forward, where its parameters are
already gathered and nothing is waited for.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.distributed_c10d import Store

WINDOW_STEPS = 10


@dataclass(frozen=True)
class Slow:
    """A rank that was slower than the median by `factor` for `windows` windows in a row."""

    rank: int
    factor: float
    windows: int


class Stopwatch:
    """Own seconds of this rank: host time between `start` and `pause`, and the blocks' forward."""

    def __init__(self, blocks: nn.ModuleList, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._host_s = 0.0
        self._started_s = 0.0
        self._spans: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._begun: torch.cuda.Event | float = 0.0
        for block in blocks:
            # After FSDP's own hook (registered by fully_shard before), so after the wait for the gather.
            block.register_forward_pre_hook(self._enter)
            block.register_forward_hook(self._leave)

    def start(self) -> None:
        """The rank's own work begins."""
        self._started_s = time.monotonic()

    def pause(self) -> None:
        """What follows waits for others."""
        self._host_s += time.monotonic() - self._started_s

    def _mark(self) -> torch.cuda.Event | float:
        if not self._cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _enter(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self._begun = self._mark()

    def _leave(self, *_: object) -> None:
        if not torch.is_grad_enabled():
            return
        end = self._mark()
        if isinstance(end, float) and isinstance(self._begun, float):
            self._host_s += end - self._begun
        elif isinstance(end, torch.cuda.Event) and isinstance(self._begun, torch.cuda.Event):
            self._spans.append((self._begun, end))

    def take_s(self) -> float:
        """Own seconds since the last call; spans the GPU has not finished are left for the next one."""
        total, self._host_s = self._host_s, 0.0
        while self._spans and self._spans[0][1].query():
            begin, end = self._spans.popleft()
            total += begin.elapsed_time(end) / 1e3
        return total


class Pace:
    """Publishes this rank's windows; on rank 0, compares those that all ranks have published."""

    def __init__(
        self, watch: Stopwatch, store: Store, *, rank: int, world_size: int, factor: float, windows: int
    ) -> None:
        self._watch, self._store = watch, store
        self._rank, self._world_size = rank, world_size
        self._factor, self._windows = factor, windows
        self._published = 0
        self._compared = 0
        self._in_a_row: Counter[int] = Counter()

    def after_step(self, step: int) -> Iterator[Slow]:
        """Call after every step; yields on rank 0, at most once a window. One store write a window, no wait."""
        if step % WINDOW_STEPS:
            return
        self._store.set(f"pace/{self._published}/{self._rank}", repr(self._watch.take_s()))
        self._published += 1
        if self._rank == 0:
            yield from self._compare()

    def _compare(self) -> Iterator[Slow]:
        keys = [f"pace/{self._compared}/{rank}" for rank in range(self._world_size)]
        if not self._store.check(keys):
            return
        own_s = [float(value) for value in self._store.multi_get(keys)]
        for key in keys:
            self._store.delete_key(key)
        self._compared += 1
        yield from self._judge(own_s)

    def _judge(self, own_s: list[float]) -> Iterator[Slow]:
        for rank, seconds in enumerate(own_s):
            others = statistics.median(own_s[:rank] + own_s[rank + 1 :] or own_s)
            factor = seconds / others if others else 1.0
            if factor <= self._factor:
                self._in_a_row[rank] = 0
                continue
            self._in_a_row[rank] += 1
            if self._in_a_row[rank] >= self._windows:
                yield Slow(rank, factor, self._in_a_row[rank])
