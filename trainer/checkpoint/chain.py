"""Which generations count, and which is newest. Imports no torch.

Order comes from attempts, not from clocks or step numbers. Attempt n says from which generation it started; a
generation counts only if walking back from the newest attempt meets it:

    attempt 1: saved 10, 20, 30        attempt 2 started from step 20 of attempt 1, saved 25

Walking back: everything of 2; then of 1 what is not beyond step 20. `step-30.1` is an abandoned future,
whatever its number, and a ghost of attempt 1 that publishes step 40 late changes nothing. Each record tells of the
whole way back, so that an older one that is lost cuts nothing off.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from itertools import pairwise

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
    """The attempts that lead to the newest, it first, each with the last of its steps that counts (None: all)."""

    limits: dict[int, int | None]
    newest: int
    lost: int = 0
    """The attempt of which nobody knows where it started: of those before it none can be called abandoned."""

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
    """The chain that the newest attempt's record tells of, whatever became of older ones.

    An attempt whose record was never finished never took a step; if it has committed, the record was lost later.
    """
    numbers = attempt_numbers(paths)
    first = next((number for number in reversed(numbers) if _behind(paths, number) is not None), 0)
    limits, lost = _walk(paths, first)
    return Chain(limits, max(numbers, default=0), lost)


def _walk(paths: RunPaths, number: int) -> tuple[dict[int, int | None], int]:
    """Limits of `number` and all behind it, and the attempt that the walk could not get past, or 0.

    It goes on where a record's ancestors end: records of earlier versions have none.
    """
    limits: dict[int, int | None] = {number: None} if number else {}
    while number:
        behind = _behind(paths, number)
        if behind is None:
            break
        limits.update({position.attempt: position.step for position in behind})
        number = behind[-1].attempt if behind else 0
    return limits, number


def _behind(paths: RunPaths, number: int) -> list[Position] | None:
    """What attempt `number` says it goes back to, newest first; empty for nothing, None if it cannot be told."""
    try:
        record: Attempt | Commit = load(Attempt, paths.attempts / f"{number}.json")
    except DamageError:
        commit = _a_commit_of(paths, number)
        if commit is None:
            return None
        record = commit
    names = [record.origin] if record.origin is not None else []
    names += record.ancestors if isinstance(record, Attempt) else []
    positions = [position for name in names if (position := parse_position(name))]
    attempts = [number, *(position.attempt for position in positions)]
    descending = all(later > earlier for later, earlier in pairwise(attempts))
    return positions if descending and len(positions) == len(names) else None


def _a_commit_of(paths: RunPaths, number: int) -> Commit | None:
    """The second place where an attempt's origin stands: each generation that it committed."""
    for directory in paths.checkpoints.glob(f"step-*.{number}"):
        with contextlib.suppress(DamageError):
            record = load(Commit, directory / COMMIT)
            if record.generation == directory.name:
                return record
    return None


def _ancestors(paths: RunPaths, origin: str | None) -> list[str]:
    """What lies behind `origin`: by the chain that it was chosen from, or else by its own attempt's record."""
    start = parse_position(origin) if origin is not None else None
    if start is None:
        return []
    chain = read_chain(paths)
    limits = chain.limits if chain.holds(start) else _walk(paths, start.attempt)[0]
    behind = [(attempt, step) for attempt, step in limits.items() if attempt < start.attempt]
    return [Position(attempt, step).name for attempt, step in behind if step is not None]


def committed(paths: RunPaths) -> list[Position]:
    """Every generation that has a commit record, whole or not, ascending."""
    found = (parse_position(path.parent.name) for path in paths.checkpoints.glob(f"step-*/{COMMIT}"))
    return sorted(position for position in found if position)


def candidates(paths: RunPaths) -> list[Position]:
    """What may be loaded, newest first: committed, and on the chain."""
    chain = read_chain(paths)
    return [position for position in reversed(committed(paths)) if chain.holds(position)]


def saves_under_way(paths: RunPaths) -> list[Position]:
    """What the newest attempt is writing now, as far as storage tells: begun, neither committed nor failed."""
    directories = paths.checkpoints.glob(f"step-*.{newest_attempt(paths)}")
    open_ones = (d for d in directories if not (d / COMMIT).exists() and not any(d.glob("fail.*")))
    return sorted(position for directory in open_ones if (position := parse_position(directory.name)))


def take_attempt(paths: RunPaths, record: Attempt) -> Attempt:
    """Create the next attempt's record (O_EXCL, durable); returns it with the number taken and its ancestors."""
    ancestors = _ancestors(paths, record.origin)
    number = newest_attempt(paths)
    while True:
        number += 1
        taken = Attempt(**{**vars(record), "attempt": number, "ancestors": ancestors})
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
