"""What the ranks of an attempt tell each other through the store: decisions, stops, failures, whole snapshots.

The store hurries things and decides nothing: it may be lost at any moment, and every call here survives that.
All of it is done by the helper thread, so no step waits for the network.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from trainer.checkpoint.chain import Position
from trainer.checkpoint.decisions import Board, Decision, own_connection

log = logging.getLogger(__name__)

LISTEN_S = 0.05
RETRY_S = 1.0
STOP_KEY = "stop"


@dataclass
class Session:
    """What belongs to one attempt."""

    rank: int
    world_size: int
    attempt: int
    group: dist.ProcessGroup
    store: Store
    board: Board
    held: frozenset[Position] = frozenset()
    """Of the attempt before: what still takes a slot on some rank."""


def ticket_of_old(position: Position) -> str:
    """Of a save that the attempt before has left."""
    return f"old/{position.name}"


class Mail:
    """A rank's letters in one attempt. `exchange` is called by the helper thread, the rest by any.

    A launch has a ticket, the same on all ranks: a snapshot and the last save may be of one step.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._store = session, own_connection(session.store)
        self._outbox: deque[Callable[[], object]] = deque()
        self._listened_s = self._retry_s = 0.0
        self._votes_open = False
        self._newest: tuple[str, Position, float] | None = None
        self._whole: str | None = None
        self._held = {ticket_of_old(position): position for position in sorted(session.held) if self.lead}
        self.stop_seen: str | None = None
        """Rank 0: someone has asked to stop."""
        self.device_agreed = False
        """Rank 0: every rank has room for a device-side snapshot."""

    @property
    def lead(self) -> bool:
        """Whether this is rank 0."""
        return self._session.rank == 0

    def post(self, decision: Decision) -> None:
        """Rank 0: bring a decision to the others."""
        self._outbox.append(lambda: self._session.board.send(decision))

    def ask_to_stop(self, reason: str) -> None:
        """Tell rank 0."""
        self._outbox.append(lambda: self._store.set(STOP_KEY, reason))

    def vote(self, room: bool) -> None:
        """Whether this rank's device has room for a snapshot; all must agree."""
        self._outbox.append(lambda: self._store.add("stage/room", int(room)))
        self._outbox.append(lambda: self._store.add("stage/votes", 1))
        self._votes_open = self.lead

    def say_failed(self, ticket: str, why: str) -> None:
        """A save has failed here."""
        self._outbox.append(lambda: self._store.set(f"failed/{ticket}", f"rank {self._session.rank}: {why}"))

    def say_whole(self, ticket: str) -> None:
        """A snapshot is whole here."""
        self._outbox.append(lambda: self._store.add(f"whole/{ticket}", 1))

    def say_released(self, ticket: str) -> None:
        """Its slot may be filled again here."""
        self._outbox.append(lambda: self._store.add(f"released/{ticket}", 1))

    def launched(self, ticket: str, position: Position) -> None:
        """A snapshot is under way; rank 0 wants to know when all hold it, and when all have a slot again."""
        self._newest = (ticket, position, time.monotonic())
        if self.lead:
            self._held[ticket] = position

    def committed(self, ticket: str) -> None:
        """Rank 0: what is committed is whole on every rank."""
        if self._newest is not None and self._newest[0] == ticket:
            self._whole = ticket

    def unconfirmed(self, patience_s: float) -> Position | None:
        """Rank 0: the newest snapshot, as long as not every rank is known to hold it whole."""
        if self._newest is None:
            return None
        ticket, position, launched_s = self._newest
        confirmed = ticket == self._whole or time.monotonic() - launched_s > patience_s
        return None if confirmed else position

    def held(self) -> list[Position]:
        """Rank 0: what takes a slot on some rank, oldest first."""
        return list(self._held.values())

    def exchange(self, active: Iterable[str]) -> dict[str, str]:
        """Send what is to be sent, and listen now and then; returns failures of `active` saves on other ranks."""
        if time.monotonic() < self._retry_s:
            return {}
        while self._outbox:
            if self._try(self._outbox[0]) is _FAILED:
                return {}
            self._outbox.popleft()
        if time.monotonic() - self._listened_s < LISTEN_S:
            return {}
        self._listened_s = time.monotonic()
        if self.lead:
            self._try(self._hear)
        heard = {ticket: self._try(lambda ticket=ticket: self._failure(ticket)) for ticket in active}  # type: ignore[misc]
        return {ticket: str(why) for ticket, why in heard.items() if why is not None and why is not _FAILED}

    def _hear(self) -> None:
        if self._votes_open and self._store.add("stage/votes", 0) >= self._session.world_size:
            self.device_agreed = self._store.add("stage/room", 0) >= self._session.world_size
            self._votes_open = False
        if self.stop_seen is None and self._store.check([STOP_KEY]):
            self.stop_seen = self._store.get(STOP_KEY).decode()
        if self._newest is not None and self._newest[0] != self._whole:
            self._hear_whole(self._newest[0])
        for ticket in list(self._held):
            if self._store.add(f"released/{ticket}", 0) >= self._session.world_size:
                del self._held[ticket]

    def _hear_whole(self, ticket: str) -> None:
        if self._store.add(f"whole/{ticket}", 0) >= self._session.world_size:
            self._whole = ticket
        elif self._store.check([f"failed/{ticket}"]):
            self._newest = None

    def _failure(self, ticket: str) -> str | None:
        key = f"failed/{ticket}"
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _try(self, call: Callable[[], object]) -> object:
        try:
            return call()
        except RuntimeError as error:
            log.warning("the store of the attempt does not answer: %s", str(error).splitlines()[0])
            self._retry_s = time.monotonic() + RETRY_S
            return _FAILED


_FAILED = object()
