"""Who uses a local world. What was brought up for the time of its use goes with the last who uses it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO


class Part(StrEnum):
    """What can be brought up, and taken away by itself."""

    KUBERNETES = "kubernetes"
    AWS = "aws"


class Holders:
    """One command's view of all that use an environment on this machine; the others are processes like it.

    Each holds a lock on a file of its own, so one that was killed holds nothing. A mark says of a part that it
    was brought up for as long as it is used. What is said and asked of it holds inside `changing`.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / "holders"
        self._mine: IO[str] | None = None
        self._path: Path | None = None

    @contextmanager
    def changing(self, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Nobody else starts, ends or counts meanwhile. `on_wait` is called if another does at the moment."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            if not _locked(lock):
                on_wait()
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def enter(self) -> None:
        """This command uses the world from now on."""
        descriptor, path = tempfile.mkstemp(prefix=f"{os.getpid()}-", suffix=".holder", dir=self._folder)
        self._path, self._mine = Path(path), os.fdopen(descriptor, "w")
        fcntl.flock(self._mine, fcntl.LOCK_EX)

    def leave(self) -> None:
        """It no longer does."""
        if self._mine is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            self._mine.close()
            self._mine = self._path = None

    def others(self) -> list[int]:
        """Process numbers of the other commands that use it. Forgets those that were killed."""
        return [pid for path in self._folder.glob("*.holder") if (pid := self._holder(path)) is not None]

    def _holder(self, path: Path) -> int | None:
        if path == self._path:
            return None
        with suppress(FileNotFoundError), path.open("r+") as file:
            if not _locked(file):
                return int(path.name.partition("-")[0])
            path.unlink()
        return None

    def is_passing(self, part: Part) -> bool:
        """The part goes with the last who uses it."""
        return self._mark(part).exists()

    def mark(self, part: Part) -> None:
        """It was not there, and is brought up for the time of its use."""
        self._kept(part).unlink(missing_ok=True)
        self._mark(part).touch()

    def is_kept(self, part: Part) -> bool:
        """It is to stay, so one that has died is brought up again to stay."""
        return self._kept(part).exists()

    def keep(self, *parts: Part) -> None:
        """They stay when nobody uses them."""
        for part in parts:
            self._mark(part).unlink(missing_ok=True)
            self._kept(part).touch()

    def forget(self) -> None:
        """All that was brought up here has been taken away."""
        for part in Part:
            self._mark(part).unlink(missing_ok=True)
            self._kept(part).unlink(missing_ok=True)

    def gone(self, part: Part) -> None:
        """A part that nobody kept has been taken away."""
        self._mark(part).unlink(missing_ok=True)

    def _mark(self, part: Part) -> Path:
        return self._folder / f"passing-{part}"

    def _kept(self, part: Part) -> Path:
        return self._folder / f"kept-{part}"


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
