"""Which generations count, and which is newest. Imports no torch.

Order comes from attempts, not from clocks or step numbers. Attempt n says from which generation it started; a
generation counts only if walking back from the newest attempt meets it:

    attempt 1: saved 10, 20, 30        attempt 2 started from step 20 of attempt 1, saved 25

Walking back: everything of 2; then of 1 what is not beyond step 20. `step-30.1` is an abandoned future,
whatever its number, and a ghost of attempt 1 that publishes step 40 late changes nothing.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from trainer.checkpoint.records import COMMIT, Attempt, Commit, DamageError, load, seal
from trainer.checkpoint.storage import PosixStorage
from trainer.paths import GENERATION_NAME, RunPaths, generation_name


@dataclass(frozen=True, order=True)
class Position:
    """A state of the run: attempt first, so that comparing two positions on one chain orders them."""

    attempt: int
    step: int

    @property
    def name(self) -> str:
        """The generation's directory name."""
        return generation_name(self.step, self.attempt)


def parse_position(name: str) -> Position | None:
    """None if `name` is not a generation's."""
    match = GENERATION_NAME.match(name)
    return Position(int(match[2]), int(match[1])) if match else None


@dataclass(frozen=True)
class Chain:
    """The attempts that lead to the newest, each with the last of its steps that counts (None: all)."""

    limits: dict[int, int | None]
    newest: int

    def holds(self, position: Position) -> bool:
        """Whether that state lies on the chain."""
        if position.attempt not in self.limits:
            return False
        limit = self.limits[position.attempt]
        return limit is None or position.step <= limit


def attempt_numbers(paths: RunPaths) -> list[int]:
    """Every number ever taken, ascending: also of attempts whose record is torn."""
    return sorted(int(path.stem) for path in paths.attempts.glob("*.json") if path.stem.isdigit())


def newest_attempt(paths: RunPaths) -> int:
    """0 if there is none."""
    return max(attempt_numbers(paths), default=0)


def read_chain(paths: RunPaths) -> Chain:
    """Walk back from the newest attempt. An attempt whose record was never finished never took a step."""
    numbers = attempt_numbers(paths)
    origins = {number: _origin(paths, number) for number in numbers}
    known = [number for number in numbers if origins[number] is not None]
    limits: dict[int, int | None] = {}
    limit: int | None = None
    current = known[-1] if known else 0
    while current and current not in limits:
        limits[current] = limit
        start = origins.get(current) or Position(0, 0)
        current, limit = start.attempt, start.step
    return Chain(limits, max(numbers, default=0))


def _origin(paths: RunPaths, number: int) -> Position | None:
    """Where attempt `number` started; Position(0, 0) for nothing, None if it cannot be told."""
    try:
        origin = load(Attempt, paths.attempts / f"{number}.json").origin
    except DamageError:
        return _origin_from_commits(paths, number)
    return Position(0, 0) if origin is None else parse_position(origin)


def _origin_from_commits(paths: RunPaths, number: int) -> Position | None:
    """The second place where an attempt's origin stands: in each generation that it committed."""
    for directory in paths.checkpoints.glob(f"step-*.{number}"):
        with contextlib.suppress(DamageError):
            origin = load(Commit, directory / COMMIT).origin
            return Position(0, 0) if origin is None else parse_position(origin)
    return None


def committed(paths: RunPaths) -> list[Position]:
    """Every generation that has a commit record, whole or not, ascending."""
    found = (parse_position(path.parent.name) for path in paths.checkpoints.glob(f"step-*/{COMMIT}"))
    return sorted(position for position in found if position)


def candidates(paths: RunPaths) -> list[Position]:
    """What may be loaded, newest first: committed, and on the chain."""
    chain = read_chain(paths)
    return [position for position in reversed(committed(paths)) if chain.holds(position)]


def take_attempt(paths: RunPaths, record: Attempt) -> Attempt:
    """Create the next attempt's record (O_EXCL, durable); returns it with the number taken."""
    number = newest_attempt(paths)
    while True:
        number += 1
        taken = Attempt(**{**vars(record), "attempt": number})
        path = paths.attempts / f"{number}.json"
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            continue
        with os.fdopen(fd, "wb") as file:
            file.write(seal(taken))
            file.flush()
            os.fsync(file.fileno())
        PosixStorage().fsync_directory(paths.attempts)
        return taken
