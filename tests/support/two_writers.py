"""A run of two writers without torch: processes that a test drives, ends, and lets fail at any point of a save."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkProcess
from pathlib import Path

from trainer.checkpoint import writer
from trainer.checkpoint.chain import Position, candidates, committed, take_attempt
from trainer.checkpoint.records import Attempt, Slot
from trainer.checkpoint.reports import Outcome, Phase, poll
from trainer.checkpoint.retention import sweep
from trainer.checkpoint.verify import verify_generation
from trainer.checkpoint.writer import Request, handle
from trainer.paths import RunPaths

WORLD = 2
CUTS = [0, 40960, 49152, 53248]
PROTOCOL = ("started", "mkdir", "made", "create", "write", "fsync", "close", "written", "rename", "acked")
COMMITTING = ("gathered", "described", "fenced", "committed", "pruned")
fork = multiprocessing.get_context("fork")


def wait_until(condition: Callable[[], bool]) -> None:
    """Until a writer has come that far."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class World:
    """A run of two writers, driven step by step."""

    def __init__(self, root: Path, keep: int = 3) -> None:
        self.paths = RunPaths(root / "run")
        self.paths.make()
        self.scratch = root / "shm"
        self.scratch.mkdir()
        self.keep = keep
        self.attempt, self.origin = 0, None
        self.begin(None)

    def begin(self, origin: Position | None) -> None:
        """A new attempt from `origin`."""
        name = origin.name if origin else None
        record = Attempt(0, name, "storage" if name else "none", origin.step if origin else 0, WORLD, time.time())
        self.attempt = take_attempt(self.paths, record).attempt
        self.origin = name
        sweep(self.paths)

    def request(self, rank: int, step: int, attempt: int, origin: str | None, timeout_s: float = 20.0) -> Request:
        position = Position(attempt, step)
        arena = self.scratch / f"{position.name}.{rank}"
        arena.write_bytes(os.urandom(1024) * (CUTS[-1] // 1024))
        slot = Slot("r", "p", "b", rank, WORLD, attempt, step, "layout", CUTS, [])
        return Request(
            run_root=self.paths.root,
            generation=position.name,
            origin=origin,
            arena=arena,
            slot_at=0,
            slot=slot,
            slot_record=self.scratch / f"slot.{rank}.{step}.{attempt}.json",
            outcome=self.scratch / f"outcome.{rank}.{position.name}",
            persist=True,
            metadata=b"m" * 100,
            commit_timeout_s=timeout_s,
            keep=self.keep,
            keep_spaced=0,
            write_threads=2,
        )

    def requests(self, step: int, timeout_s: float = 20.0) -> list[Request]:
        return [self.request(rank, step, self.attempt, self.origin, timeout_s) for rank in range(WORLD)]

    def save(self, step: int, timeout_s: float = 20.0, ranks: tuple[int, ...] = (0, 1)) -> list[Outcome | None]:
        """Run the writers of one save to their ends; None for one that died."""
        requests = [r for r in self.requests(step, timeout_s) if r.slot.rank in ranks]
        for process in started(requests):
            process.join(30)
            assert not process.is_alive(), "a writer hangs"
        return [poll(request.outcome, Phase.DONE) for request in requests]

    @property
    def newest(self) -> Position | None:
        return next(iter(candidates(self.paths)), None)


def started(requests: Iterable[Request]) -> list[ForkProcess]:
    """A process for each, at work."""
    processes = [fork.Process(target=write_and_exit, args=(request,)) for request in requests]
    for process in processes:
        process.start()
    return processes


def write_and_exit(request: Request) -> None:
    """What a writer's process does with one request."""
    writer._lane = None
    handle(request)
    writer._storage_lane().shutdown(wait=True)
    os._exit(0)


def assert_whole(world: World) -> None:
    """What has a commit record is whole: commit implies that all bytes are there."""
    for position in committed(world.paths):
        assert not verify_generation(world.paths.checkpoints / position.name), position
