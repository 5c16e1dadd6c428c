"""Keeps a snapshot of the whole world apart from the requests that change it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many may change the world at once; a snapshot waits until nobody does.

    Those who change it never wait for a waiting snapshot: a request may cause another one.
    """

    def __init__(self) -> None:
        self._quiet = threading.Condition(threading.RLock())
        self._inside = 0
        self.changes = 0

    @contextmanager
    def changing(self, counts: bool = True) -> Iterator[None]:
        """Around anything that changes emulated state; what only reads need not count as a change."""
        with self._quiet:
            self._inside += 1
        try:
            yield
        finally:
            with self._quiet:
                self._inside -= 1
                self.changes += counts
                self._quiet.notify_all()

    @contextmanager
    def still(self) -> Iterator[int]:
        """Around a snapshot; gives the number of changes it holds."""
        with self._quiet:
            self._quiet.wait_for(lambda: self._inside == 0)
            yield self.changes


GATE = Gate()
