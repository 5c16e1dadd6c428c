"""What runs in the writer process: hash, write, acknowledge and, for rank 0, commit. Imports no torch.

The protocol of one generation; each arrow is a named point at which tests kill the process:

    started → (rank 0) mkdir → made → data written, fsync, close, fsync(dir) → written → ack.<rank>.json → acked
    rank 0 goes on: all acks there → gathered → .metadata → described → newest attempt is still ours → fenced
    → commit.json → committed → old generations deleted → pruned

Acks are files, so the store may be lost in the middle. Nobody completes another's commit: a process that finds a
newer attempt gives up, and what it leaves is removed by the next start.

Two lanes, since slow storage must not make the memory tier old: the process's main thread hashes (XXH3, 16 GB/s)
and makes the slot valid; a second lane writes each block once it is hashed, so the bytes are read while warm.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from trainer.checkpoint.chain import Position, newest_attempt
from trainer.checkpoint.faults import storage_for
from trainer.checkpoint.records import (
    COMMIT,
    METADATA,
    Ack,
    Commit,
    DamageError,
    FileRecord,
    Slot,
    ack_name,
    block_spans,
    checksum,
    data_name,
    failure_name,
    load,
    seal,
)
from trainer.checkpoint.reports import Outcome, Phase, report
from trainer.checkpoint.retention import clear_failed, prune, sweep_failed
from trainer.checkpoint.storage import PosixStorage, Storage, publish
from trainer.files import write_whole
from trainer.parent_death import die_with_parent, name_process
from trainer.paths import RunPaths

POLL_S = 0.02
PROCESS_NAME = "steadfast-save"
"""In `ps` and `top`; at most 15 characters."""


class CancelledError(Exception):
    """The trainer has given this save up, or a newer attempt has begun."""


@dataclass(frozen=True)
class Request:
    """Everything a save needs. Plain values: it is pickled into NVRx's queue."""

    run_root: Path
    generation: str
    origin: str | None
    arena: Path
    slot_at: int
    slot: Slot
    slot_record: Path
    outcome: Path
    """Where results are left: `<outcome>.<phase>`; `<outcome>.cancel` asks to stop."""
    persist: bool
    metadata: bytes
    commit_timeout_s: float
    keep: int
    keep_spaced: int
    write_threads: int

    @property
    def paths(self) -> RunPaths:
        """The run directory."""
        return RunPaths(self.run_root)

    @property
    def directory(self) -> Path:
        """The generation's directory."""
        return self.paths.checkpoints / self.generation

    @property
    def cancelled(self) -> bool:
        """Whether the trainer has given this save up."""
        return self.outcome.with_name(self.outcome.name + ".cancel").exists()

    def check(self) -> None:
        """Raises CancelledError."""
        if self.cancelled:
            raise CancelledError("given up by its trainer")


_lane: ThreadPoolExecutor | None = None
_maps: dict[tuple[Path, int], memoryview] = {}


def adopt(trainer_pid: int, ready: Path) -> None:
    """First request of a new process: die with the trainer, and say that requests are being read.

    A planned stop signals every process of the pod, and the trainer still wants its last save.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    name_process(PROCESS_NAME)
    die_with_parent(trainer_pid)
    write_whole(ready, str(os.getpid()).encode())


def handle(request: Request) -> None:
    """One save. Never raises: an exception would end NVRx's worker without a word."""
    hashes: list[Future[str]] = [Future() for _ in block_spans(request.slot.cuts)]
    lane_reports = False
    try:
        image = _mapped(request.arena)[request.slot_at : request.slot_at + request.slot.cuts[-1]]
        if request.persist:
            _storage_lane().submit(_persist, request, image, hashes)
            lane_reports = True
        result = Outcome(ok=True, checksum_s=_make_valid(request, image, hashes))
    except BaseException as error:
        result = Outcome(ok=False, error=_describe(error))
        for future in hashes:
            if not future.done():
                future.set_exception(error)
    report(request.outcome, Phase.HASHED, result)
    if not lane_reports:  # as long as it runs, it reads the slot
        report(request.outcome, Phase.DONE, result)


def _make_valid(request: Request, image: memoryview, hashes: list[Future[str]]) -> float:
    """Hash the slot and say that it is whole; returns what the hashing took."""
    started = time.perf_counter()
    for (start, end), future in zip(block_spans(request.slot.cuts), hashes, strict=True):
        future.set_result(checksum(image[start:end]))
    took_s = time.perf_counter() - started
    sums = [future.result() for future in hashes]
    publish(PosixStorage(), request.slot_record, seal(replace(request.slot, sums=sums)))
    return took_s


def _mapped(arena: Path) -> memoryview:
    """The arena, mapped once: faulting its pages in anew at each save would cost as much as hashing them."""
    with arena.open("rb") as file:
        inode = os.fstat(file.fileno()).st_ino
        if (arena, inode) not in _maps:
            _maps.clear()
            _maps[arena, inode] = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    return _maps[arena, inode]


def _storage_lane() -> ThreadPoolExecutor:
    global _lane
    if _lane is None:
        _lane = ThreadPoolExecutor(1, thread_name_prefix="storage")
    return _lane


def _persist(request: Request, image: memoryview, hashes: list[Future[str]]) -> None:
    rank = request.slot.rank
    storage = storage_for(request.paths, rank=rank, step=request.slot.step, generation=request.generation)
    try:
        storage.reach("started", request.directory)
        ack = _write_rank(request, storage, image, hashes)
        done = Outcome(ok=True, bytes=ack.file.bytes, write_s=ack.write_s, fsync_s=ack.fsync_s)
        report(request.outcome, Phase.WRITTEN, done)
        if rank == 0:
            started = time.perf_counter()
            total = _commit(request, storage)
            done = replace(
                done, committed_bytes=total, commit_s=time.perf_counter() - started, end_s=time.monotonic()
            )
        report(request.outcome, Phase.COMMITTED if rank == 0 else Phase.DONE, done)
        if rank == 0:
            pruned = prune(request.paths, request.keep, request.keep_spaced)
            pruned += sweep_failed(request.paths, Position(request.slot.attempt, request.slot.step))
            storage.reach("pruned", request.directory)
            report(request.outcome, Phase.DONE, replace(done, pruned=pruned))
    except BaseException as error:
        _give_up(request, error)


def _give_up(request: Request, error: BaseException) -> None:
    """Tell rank 0's writer by a file if the disk still takes one, the trainer by shared memory in any case."""
    reason = _describe(error)
    with contextlib.suppress(OSError):  # the disk is full or gone: the trainers pass it on through the store
        (request.directory / failure_name(request.slot.rank)).write_text(reason)
    if request.slot.rank == 0 and not (request.directory / COMMIT).exists():
        clear_failed(request.directory)
    report(request.outcome, Phase.DONE, Outcome(ok=False, error=reason))


def _describe(error: BaseException) -> str:
    if isinstance(error, (OSError, CancelledError, TimeoutError, DamageError)):
        return f"{type(error).__name__}: {error}"
    return "".join(traceback.format_exception(error))


def _write_rank(request: Request, storage: Storage, image: memoryview, hashes: list[Future[str]]) -> Ack:
    directory = request.directory
    if request.slot.rank == 0:
        storage.make_directory(directory)
        storage.reach("made", directory)
    else:
        _wait_for(request, lambda: [] if directory.exists() else [0], "directory of the generation")
    started = time.perf_counter()
    path = directory / data_name(request.slot.rank)
    fd = storage.create(path)
    try:
        _write_blocks(request, storage, fd, image, hashes, path)
        written = time.perf_counter()
        storage.fsync(fd, path)
    except BaseException:
        os.close(fd)
        raise
    storage.close(fd, path)
    storage.fsync_directory(directory)
    synced = time.perf_counter()
    storage.reach("written", directory)
    return _acknowledge(request, storage, hashes, written - started, synced - written)


def _write_blocks(
    request: Request, storage: Storage, fd: int, image: memoryview, hashes: list[Future[str]], path: Path
) -> None:
    def write(span: tuple[tuple[int, int], Future[str]]) -> None:
        (start, end), hashed = span
        hashed.result()
        request.check()
        storage.write(fd, image[start:end], start, path)

    spans = block_spans(request.slot.file_cuts)
    with ThreadPoolExecutor(request.write_threads, thread_name_prefix="write") as pool:
        for _ in pool.map(write, zip(spans, hashes, strict=False)):
            pass


def _acknowledge(
    request: Request, storage: Storage, hashes: list[Future[str]], write_s: float, fsync_s: float
) -> Ack:
    slot = request.slot
    count = len(block_spans(slot.file_cuts))
    ack = Ack(
        generation=request.generation,
        rank=slot.rank,
        file=FileRecord(slot.layout, slot.file_cuts, [future.result() for future in hashes[:count]]),
        write_s=write_s,
        fsync_s=fsync_s,
    )
    request.check()
    publish(storage, request.directory / ack_name(slot.rank), seal(ack))
    storage.reach("acked", request.directory)
    return ack


def _commit(request: Request, storage: Storage) -> int:
    """Rank 0: everything is durable, so say that the generation exists. Returns its bytes."""
    directory, slot = request.directory, request.slot
    ranks = range(slot.world_size)
    _wait_for(request, lambda: [r for r in ranks if not (directory / ack_name(r)).exists()], "acknowledgement")
    files = {data_name(r): _checked(request, load(Ack, directory / ack_name(r))) for r in ranks}
    storage.reach("gathered", directory)
    publish(storage, directory / METADATA, request.metadata)
    storage.reach("described", directory)
    record = Commit(
        generation=request.generation,
        step=slot.step,
        attempt=slot.attempt,
        origin=request.origin,
        world_size=slot.world_size,
        files=files,
        metadata=FileRecord("", [0, len(request.metadata)], [checksum(request.metadata)]),
        writer="steadfast",
        wall_s=time.time(),
    )
    seal_generation(request.paths, storage, record, request.check)
    return record.bytes


def seal_generation(
    paths: RunPaths, storage: Storage, record: Commit, check: Callable[[], None] = lambda: None
) -> None:
    """Publish the commit record unless a newer attempt has begun. Raises CancelledError, OSError."""
    directory = paths.checkpoints / record.generation
    newest = newest_attempt(paths)
    if newest != record.attempt:
        raise CancelledError(f"attempt {newest} has begun; this one is {record.attempt}")
    check()
    storage.reach("fenced", directory)
    publish(storage, directory / COMMIT, seal(record))
    storage.fsync_directory(paths.checkpoints)
    storage.reach("committed", directory)


def _checked(request: Request, ack: Ack) -> FileRecord:
    path = request.directory / data_name(ack.rank)
    if ack.generation != request.generation:
        raise DamageError(path, f"acknowledged as part of {ack.generation}")
    size = path.stat().st_size
    if size != ack.file.bytes:
        raise DamageError(path, f"{size} bytes, acknowledged were {ack.file.bytes}")
    return ack.file


def _wait_for(request: Request, missing: Callable[[], list[int]], what: str) -> None:
    """Bounded; names the ranks that it misses."""
    end = time.monotonic() + request.commit_timeout_s
    while ranks := missing():
        request.check()
        failed = [
            rank for rank in range(request.slot.world_size) if (request.directory / failure_name(rank)).exists()
        ]
        if failed:
            rank = failed[0]
            why = (request.directory / failure_name(rank)).read_text() or "its disk did not even take why"
            raise CancelledError(f"the writer of rank {rank} gave up: {why}")
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} from ranks {ranks} within {request.commit_timeout_s} s")
        time.sleep(POLL_S)
