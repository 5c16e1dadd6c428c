"""Rounds of the rendezvous of which nobody is left.

The next round is opened by a node of the last one that sees a failure. Who comes later waits for that without a
timeout (`_wait_for_rendezvous_open` of NVRx 0.7.0), so when all nodes of a round die within moments, of the power,
of a Capacity Block's end, of two faults at once, those who replace them wait for ever beside idle GPUs. Here those
who wait count each other in the store, and open the round when they are enough to train, when they are so many
that the last round cannot be whole, and when no launcher has shown there that it still looks after ranks of it.
"""

from __future__ import annotations

import logging
import math
import sys
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
"""Between two signs of life, of those who wait and of those whose ranks train."""
SILENT_S = 2.5
"""Without a beat for this long, one who waited is gone."""
STEADY_S = 4.0
"""For this long there must be enough of them: longer than one that is gone counts beside its replacement, and than
a node of the round that sees the failure takes to open the next itself."""
ABANDONED_S = 3 * STEADY_S
"""Without a sign of those who showed that they had ranks, nobody has: a launcher shows it every BEAT_S, until it
opens the next round or has ended."""


@dataclass(frozen=True)
class Size:
    """Nodes that train, and pods of the job at most: spares are the difference."""

    nodes: int
    pods: int

    @classmethod
    def of(cls, arguments: list[str]) -> Size:
        """From ft_launcher's `--nnodes MIN:MAX`. Raises SystemExit without it."""
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            name, given, value = argument.partition("=")
            if name == "--nnodes":
                least, _, most = (value if given else following).partition(":")
                return cls(int(least), int(most or least))
        sys.exit(f"trainer.ft_launcher: the command line has no --nnodes: {' '.join(arguments)}")

    def orphaned(self, waiting: int, *, abandoned: bool = False) -> bool:
        """Whether so many who wait can train, and leave too few for the last round to be whole.

        `abandoned`: nobody is left of that anyway.
        """
        return waiting >= self.nodes and (abandoned or self.pods - waiting < self.nodes)


class Waiting:
    """One who waits for a round, and what it sees of the others."""

    def __init__(self, store: Store, round_key: str, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._prefix, self._now = store, f"{round_key}:waiting", now
        self._training = f"{round_key}:training"
        self._trained, self._trained_s = 0, now()
        self._number = store.add(self._prefix, 1)
        self._own = 0
        self._beats: dict[str, bytes] = {}
        self._seen_s: dict[str, float] = {}

    def beat(self) -> int:
        """Show that this one still waits; returns how many do, as far as their beats were seen to change."""
        self._own += 1
        self._store.set(f"{self._prefix}:{self._number}", str(self._own))
        names = [f"{self._prefix}:{number}" for number in range(1, self._store.add(self._prefix, 0) + 1)]
        if not self._store.check(names):  # somebody is just coming, or died doing so
            names = [name for name in names if self._store.check([name])]
        self._look(names)
        return sum(self._now() - seen_s < SILENT_S for seen_s in self._seen_s.values())

    def _look(self, names: list[str]) -> None:
        for name, beats in zip(names, self._store.multi_get(names), strict=True):
            if self._beats.setdefault(name, beats) != beats:
                self._beats[name], self._seen_s[name] = beats, self._now()

    def silent_s(self) -> float | None:
        """For how long no launcher with ranks of the last round has shown itself: 0 if one just did, None if none
        ever has."""
        trained, now_s = self._store.add(self._training, 0), self._now()
        if trained != self._trained:
            self._trained, self._trained_s = trained, now_s
        return now_s - self._trained_s if trained else None


def _is_orphaned(waiting: Waiting, size: Size) -> bool:
    """As it looks at this moment; also shows that this one waits."""
    count, silent_s = waiting.beat(), waiting.silent_s()
    if silent_s is None:
        return size.orphaned(count)
    return silent_s > 0 and size.orphaned(count, abandoned=silent_s >= ABANDONED_S)


def open_if_orphaned(state: Any, size: Size, over: threading.Event) -> None:
    """Until `over`: wait with the others for the round that `state` waits for, and open it when it is time."""
    key, waiting, since_s = "", None, None
    while not over.wait(BEAT_S):
        if state.round_done_key != key or waiting is None:  # NVRx notices by and by which round it waits for
            key, since_s = state.round_done_key, None
            waiting = Waiting(state.store, key)
        orphaned = _is_orphaned(waiting, size)
        if state.store.check([key]) or not orphaned:
            since_s = None
            continue
        since_s = since_s or time.monotonic()
        if time.monotonic() - since_s >= STEADY_S:
            since_s = None
            state.store.compare_set(key, "", "0")
            if state.store.add(f"{key}:said", 1) == 1:
                log.warning("%s %s, pods that wait for it are enough for %d: opened it", ORPHANED, key, size.nodes)


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
    """From now on, in this process: who waits for a round to be opened looks after it, and who has ranks says so.

    ft_launcher asks every 0.3 s, while it watches ranks, whether another node has opened the next round.
    """
    from nvidia_resiliency_ext.fault_tolerance.ft_rendezvous_barrier import _RendezvousBarrierState as State

    wait, is_next_round_open = State._wait_for_rendezvous_open, State.is_next_round_open
    said_s = -math.inf

    def wait_for_rendezvous_open(self: Any, *args: Any, **named: Any) -> None:
        if self.is_store_host:
            wait(self, *args, **named)
            return
        with _beside(self, size):
            wait(self, *args, **named)

    def say_and_ask(self: Any) -> bool:
        nonlocal said_s
        if time.monotonic() - said_s >= BEAT_S:
            said_s = time.monotonic()
            self.store.add(f"{self.prefix}:round_done_{self._round + 1}:training", 1)
        return bool(is_next_round_open(self))

    State._wait_for_rendezvous_open, State.is_next_round_open = wait_for_rendezvous_open, say_and_ask
