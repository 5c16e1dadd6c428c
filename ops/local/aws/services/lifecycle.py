"""Things that take time: states that end by themselves, on the emulated clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ops.local.aws.settings import LIVE

GONE = "GONE"
Document = dict[str, Any]


@dataclass
class Thing:
    """A document of an API whose status changes when its time has come."""

    document: Document
    status: str
    status_key: str = "status"
    then: str = ""
    then_at_s: float = 0.0
    hidden: Document = field(default_factory=dict)
    """What belongs to it and no API shows."""

    def begin(self, status: str, then: str, emulated_s: float) -> None:
        """It has `status` from now on and becomes `then` after so many emulated seconds."""
        self.status, self.then = status, then
        self.then_at_s = time.time() + LIVE.real_s(emulated_s)

    @property
    def is_due(self) -> bool:
        """Whether its next status has come."""
        return bool(self.then) and time.time() >= self.then_at_s

    def settle(self) -> str:
        """Takes its next status."""
        self.status, self.then = self.then, ""
        return self.status

    def view(self) -> Document:
        """The document with the status."""
        return {**self.document, self.status_key: self.status}


class Things(dict[str, Thing]):
    """Things by name."""

    def views(self) -> list[Document]:
        """Every document."""
        return [thing.view() for thing in list(self.values())]

    def settle(self, on_change: Callable[[str, Thing], None] = lambda _name, _thing: None) -> None:
        """Lets time pass: what is due changes, what is gone leaves."""
        for name, thing in self._due():
            thing.settle()
            on_change(name, thing)
            if thing.status == GONE:
                self.pop(name, None)

    def _due(self) -> Iterator[tuple[str, Thing]]:
        return ((name, thing) for name, thing in list(self.items()) if thing.is_due)

    @property
    def anything_due(self) -> bool:
        """Whether `settle` would change anything."""
        return next(self._due(), None) is not None
