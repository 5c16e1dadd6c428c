"""Rank 0 alone decides about saves, a step ahead; everyone follows.

At the start of step s rank 0 publishes what happens after step s + 1. No rank asks its own clock or its own queue,
which differ: then nothing would commit. A thread reads ahead, so that training finds the decision in memory. It
asks instead of waiting: a wait inside the store cannot be ended, and would outlive the attempt or abort the
interpreter.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from torch._C._distributed_c10d import Store

log = logging.getLogger(__name__)

PAUSES_S = (0.001, 0.1)
"""Between two questions: at first, and at most."""
KEPT_STEPS = 64
"""Decisions that stay in the store; every rank has read older ones, since steps contain collectives."""


class Action(StrEnum):
    """What happens to the state after a step."""

    NONE = "none"
    SNAPSHOT = "snapshot"
    PERSIST = "persist"
    SKIP = "skip"
    STOP = "stop"
    FAIL = "fail"
    """Too many saves in a row have failed."""


@dataclass(frozen=True)
class Decision:
    """About the state after `step`."""

    step: int
    action: Action
    stage: str = ""
    """Where the snapshot is taken, once `auto` has been settled for all ranks."""
    reason: str = ""

    @property
    def saves(self) -> bool:
        """Whether a snapshot is taken."""
        return self.action in (Action.SNAPSHOT, Action.PERSIST, Action.STOP)

    @property
    def persists(self) -> bool:
        """Whether it goes to storage."""
        return self.action in (Action.PERSIST, Action.STOP)

    def encode(self) -> str:
        """For the store."""
        return f"{self.step}|{self.action}|{self.stage}|{self.reason}"

    @classmethod
    def decode(cls, text: str) -> Decision:
        """From the store."""
        step, action, stage, reason = text.split("|", 3)
        return cls(int(step), Action(action), stage, reason)


class Board:
    """Where decisions are published and read. `first` is the first step that has one."""

    def __init__(self, store: Store, rank: int, first: int, timeout_s: float) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._store = own_connection(store)
        self._known: dict[int, Decision] = {}
        self._changed = threading.Condition()
        self._closed = False
        self.waited_s = 0.0
        """What training has waited for decisions, in all."""
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        if rank != 0:
            self._thread = threading.Thread(target=self._read_ahead, args=(first,), name="decisions", daemon=True)
            self._thread.start()

    def publish(self, decision: Decision) -> None:
        """Rank 0: for its own use at once; `send` brings it to the others."""
        with self._changed:
            self._known[decision.step] = decision

    def send(self, decision: Decision) -> None:
        """Rank 0, from a helper thread. Raises RuntimeError when the store is gone."""
        self._store.set(_key(decision.step), decision.encode())
        if decision.step > KEPT_STEPS:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # not every store deletes
                self._store.delete_key(_key(decision.step - KEPT_STEPS))

    def of(self, step: int) -> Decision:
        """The decision about `step`. Raises TimeoutError naming rank 0."""
        started = time.monotonic()
        if step not in self._known:
            self._hurry.set()
        with self._changed:
            if not self._changed.wait_for(lambda: step in self._known, self._timeout_s):
                raise TimeoutError(f"rank 0 has decided nothing about step {step} for {self._timeout_s} s")
            self.waited_s += time.monotonic() - started
            self._known.pop(step - 2, None)
            return self._known[step]

    def stop_step(self) -> int | None:
        """The step after which everyone stops, as soon as it is known here."""
        with self._changed:
            return min((d.step for d in self._known.values() if d.action is Action.STOP), default=None)

    def close(self) -> None:
        """End the reading thread."""
        self._closed = True
        self._hurry.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _read_ahead(self, step: int) -> None:
        try:
            while self._await(step):
                decision = Decision.decode(self._store.get(_key(step)).decode())
                with self._changed:
                    self._known[decision.step] = decision
                    self._changed.notify_all()
                step += 1
        except RuntimeError as error:
            log.warning("the store of the decisions is gone: %s", str(error).splitlines()[0])

    def _await(self, step: int) -> bool:
        """Until the decision is there; False if nobody wants it any more."""
        pause_s, longest_s = PAUSES_S
        while not self._closed:
            if self._store.check([_key(step)]):
                return True
            if self._hurry.wait(pause_s):
                self._hurry.clear()
                pause_s = PAUSES_S[0]
            pause_s = min(2 * pause_s, longest_s)
        return False


def own_connection(store: Store) -> Store:
    """Another connection to the same store: calls over one wait for each other, a blocking one for its timeout."""
    try:
        return cast(Store, store.clone())  # type: ignore[attr-defined]
    except (RuntimeError, AttributeError):  # a store without connections needs none of its own
        return store


def _key(step: int) -> str:
    return f"decision/{step}"
