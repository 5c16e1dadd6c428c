"""Rounds of the rendezvous of which nobody is left.

The next round is opened by a node of the last one that sees a failure. Who comes later waits for that without a
timeout (`_wait_for_rendezvous_open` of NVRx 0.7.0), so when all nodes of a round die within moments, of the power,
of a Capacity Block's end, of two faults at once, those who replace them wait for ever beside idle GPUs. Here those
who wait count each other in the store, and open the round when they are enough to train and so many that the last
round cannot be whole. A node of it that still lives joins them, as it does when another node opens a round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.distributed.distributed_c10d import Store

from trainer.launcher_log import ORPHANED

log = logging.getLogger("steadfast.orphans")

BEAT_S = 1.0
SILENT_S = 2.5
"""Without a beat for this long, one who waited is gone."""
STEADY_S = 4.0
"""For this long there must be enough of them: longer than one that is gone counts beside its replacement, and than
a node of the round that sees the failure takes to open the next itself."""


@dataclass(frozen=True)
class Size:
    """Nodes that train, and pods of the job at most: spares are the difference."""

    nodes: int
    pods: int

    @classmethod
    def of(cls, arguments: list[str]) -> Size:
        """From ft_launcher's `--nnodes=MIN:MAX`. Raises ValueError without it."""
        for argument in arguments:
            if argument.startswith("--nnodes="):
                least, _, most = argument.removeprefix("--nnodes=").partition(":")
                return cls(int(least), int(most or least))
        raise ValueError(f"ft_launcher's command line has no --nnodes=: {' '.join(arguments)}")

    def orphaned(self, waiting: int) -> bool:
        """Whether so many who wait can train, and leave too few for the last round to be whole."""
        return waiting >= self.nodes and self.pods - waiting < self.nodes


class Waiting:
    """One who waits for a round, and what it sees of the others."""

    def __init__(self, store: Store, round_key: str, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._prefix, self._now = store, f"{round_key}:waiting", now
        self._number = store.add(self._prefix, 1)
        self._beats: dict[int, int] = {}
        self._seen_s: dict[int, float] = {}

    def beat(self) -> int:
        """Show that this one still waits; returns how many do, as far as their beats were seen to change."""
        self._store.add(f"{self._prefix}:{self._number}", 1)
        now_s = self._now()
        for number in range(1, self._store.add(self._prefix, 0) + 1):
            beats = self._store.add(f"{self._prefix}:{number}", 0)
            if self._beats.setdefault(number, beats) != beats:
                self._beats[number], self._seen_s[number] = beats, now_s
        return sum(now_s - seen_s < SILENT_S for seen_s in self._seen_s.values())


def open_if_orphaned(state: Any, size: Size, over: threading.Event) -> None:
    """Until `over`: wait with the others for the round that `state` waits for, and open it when it is time."""
    key, waiting, since_s = "", None, None
    while not over.wait(BEAT_S):
        if state.round_done_key != key or waiting is None:  # NVRx notices by and by which round it waits for
            key, since_s = state.round_done_key, None
            waiting = Waiting(state.store, key)
        if state.store.check([key]) or not size.orphaned(count := waiting.beat()):
            since_s = None
            continue
        since_s = since_s or time.monotonic()
        if time.monotonic() - since_s >= STEADY_S:
            log.warning(
                "%s %s, %d pods wait for it, %d are to train: opening it", ORPHANED, key, count, size.nodes
            )
            state.store.compare_set(key, "", "0")
            since_s = None


@contextmanager
def _beside(state: Any, size: Size) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        try:
            open_if_orphaned(state, size, over)
        except RuntimeError as error:  # the store is gone, which `trainer.launch` notices
            log.info("no longer looking for orphaned rounds: %s", error)

    threading.Thread(target=run, name="orphans", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def watch(size: Size) -> None:
    """From now on, in this process, whoever waits for a round to be opened looks after it."""
    from nvidia_resiliency_ext.fault_tolerance.ft_rendezvous_barrier import _RendezvousBarrierState

    wait = _RendezvousBarrierState._wait_for_rendezvous_open

    def wait_for_rendezvous_open(self: Any, *args: Any, **named: Any) -> None:
        with _beside(self, size):
            wait(self, *args, **named)

    _RendezvousBarrierState._wait_for_rendezvous_open = wait_for_rendezvous_open
