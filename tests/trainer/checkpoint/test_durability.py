"""Commit implies durable, shown by recording every call on storage: what a power cut at any moment would leave."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.checkpoint import chain, faults, storage, verify, writer
from trainer.checkpoint.chain import Position, candidates, newest_attempt, take_attempt
from trainer.checkpoint.records import COMMIT, METADATA, Attempt, Slot, ack_name, block_spans, checksum, data_name
from trainer.checkpoint.storage import PosixStorage
from trainer.checkpoint.writer import CancelledError, Request
from trainer.paths import RunPaths

pytestmark = pytest.mark.unit


@dataclass
class Disk:
    """What is durable: contents by inode, names by directory. As strict as POSIX lets a disk be."""

    dirty: set[int] = field(default_factory=set)
    entries: dict[Path, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    synced: list[Path] = field(default_factory=list)
    """Directories since the last name that appeared."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def lists(self, path: Path) -> bool:
        """Whether the name is durable."""
        return self.entries.get(path.parent, {}).get(path.name) == path.stat().st_ino

    def demand(self, path: Path, when: str) -> None:
        """Name and content of `path` must be durable by now."""
        if path.stat().st_ino in self.dirty:
            self.problems.append(f"{when}: the content of {path.name} is not durable")
        if not self.lists(path):
            self.problems.append(f"{when}: the name of {path.name} is not durable")


class Recorder(PosixStorage):
    """Keeps account of what each call makes durable."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def write(self, fd: int, data: memoryview, offset: int, path: Path) -> None:
        super().write(fd, data, offset, path)
        with self.disk.lock:
            self.disk.dirty.add(os.fstat(fd).st_ino)

    def fsync(self, fd: int, path: Path) -> None:
        super().fsync(fd, path)
        with self.disk.lock:
            self.disk.dirty.discard(os.fstat(fd).st_ino)

    def fsync_directory(self, path: Path) -> None:
        super().fsync_directory(path)
        with self.disk.lock:
            self.disk.synced.append(path)
            self.disk.entries[path] = {entry.name: entry.inode() for entry in os.scandir(path)}

    def rename(self, source: Path, target: Path) -> None:
        with self.disk.lock:
            self._about_to_appear(source, target)
            self.disk.synced = []
        super().rename(source, target)

    def _about_to_appear(self, source: Path, target: Path) -> None:
        if source.stat().st_ino in self.disk.dirty:
            self.disk.problems.append(f"{target.name} appears before its content is durable")
        if target.name.startswith("ack."):
            rank = int(target.name.split(".")[1])
            self.disk.demand(target.with_name(data_name(rank)), f"at {target.name}")
        if target.name == COMMIT:
            for path in target.parent.iterdir():
                if not path.name.startswith("."):
                    self.disk.demand(path, "at the commit")
            if not self.disk.lists(target.parent):
                self.disk.problems.append("at the commit: the generation's directory is not durable")

    def reach(self, point: str, path: Path) -> None:
        due = {"written": "*.distcp", "acked": "ack.*", "described": METADATA, "committed": COMMIT}.get(point)
        with self.disk.lock:
            for file in path.glob(due) if due else ():
                self.disk.demand(file, f"once {point}")
            if point == "committed" and self.disk.synced != [path, path.parent]:
                self.disk.problems.append(f"after the commit: synced {self.disk.synced}")


class Save:
    """Two or three ranks' writers as plain calls, in one process."""

    def __init__(self, root: Path, ranks: int, cuts: list[int], threads: int = 2) -> None:
        self.root, self.ranks, self.cuts, self.threads = root, ranks, cuts, threads
        self.paths = RunPaths(root / "run")
        self.paths.make()
        self.images = [_aligned(os.urandom(cuts[-1])) for _ in range(ranks)]
        self.attempt = self.begin()

    def begin(self, origin: str | None = None) -> int:
        return take_attempt(self.paths, Attempt(0, origin, "none", 0, self.ranks, time.time())).attempt

    def request(self, rank: int, step: int) -> Request:
        slot = Slot("r", "p", "b", rank, self.ranks, self.attempt, step, "layout", self.cuts, [])
        return Request(
            run_root=self.paths.root,
            generation=Position(self.attempt, step).name,
            origin=None,
            arena=self.root,
            slot_at=0,
            slot=slot,
            slot_record=self.root / "slot",
            outcome=self.root / f"outcome.{rank}",
            persist=True,
            metadata=b"m" * 64,
            commit_timeout_s=0.2,
            keep=2,
            keep_spaced=0,
            write_threads=self.threads,
        )

    def write(self, rank: int, step: int, onto: storage.Storage) -> None:
        """A rank's part, up to its ack."""
        hashes: list[Future[str]] = []
        for start, end in block_spans(self.cuts):
            hashes.append(Future())
            hashes[-1].set_result(checksum(self.images[rank][start:end]))
        writer._write_rank(self.request(rank, step), onto, self.images[rank], hashes)

    def commit(self, step: int, onto: storage.Storage) -> int:
        return writer._commit(self.request(0, step), onto)

    def run(self, step: int, onto: storage.Storage) -> Path:
        for rank in range(self.ranks):
            self.write(rank, step, onto)
        self.commit(step, onto)
        return self.paths.checkpoints / Position(self.attempt, step).name


def _aligned(data: bytes) -> memoryview:
    """As an arena is: O_DIRECT takes nothing else."""
    memory = mmap.mmap(-1, len(data))
    memory.write(data)
    return memoryview(memory)


@contextmanager
def scratch() -> Iterator[Path]:
    root = Path(tempfile.mkdtemp(prefix="durable-", dir="/dev/shm"))
    try:
        yield root
    finally:
        shutil.rmtree(root)


images = st.lists(st.integers(1, 40_000), min_size=4, max_size=4).map(
    lambda sizes: [0, *(sum(sizes[: n + 1]) for n in range(4))]
)


@settings(max_examples=25, deadline=None)
@given(ranks=st.integers(1, 3), cuts=images, threads=st.integers(1, 3))
def test_commit_implies_that_every_byte_is_durable(ranks: int, cuts: list[int], threads: int) -> None:
    with scratch() as root:
        disk = Disk()
        directory = Save(root, ranks, cuts, threads).run(10, Recorder(disk))
        assert not disk.problems
        assert not verify.verify_generation(directory)
        names = {data_name(r) for r in range(ranks)} | {ack_name(r) for r in range(ranks)} | {METADATA, COMMIT}
        assert {path.name for path in directory.iterdir()} == names, "nothing temporary is left"


def test_an_attempt_is_durable_before_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut takes its number back, and the next attempt writes under the same names."""
    calls: list[str] = []
    real = os.fsync
    monkeypatch.setattr(chain.os, "fsync", lambda fd: (calls.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    save = Save(tmp_path, 1, [0, 1, 2, 3, 4])
    record = save.paths.attempts / f"{save.attempt}.json"
    assert calls == [str(record), str(record.parent)]


@given(st.lists(st.sampled_from(["take", "tear", "lose"]), max_size=12))
@settings(max_examples=40, deadline=None)
def test_attempt_numbers_are_never_reused(acts: list[str]) -> None:
    """Torn or not. Only the newest of a run whose record is removed by hand could come again."""
    with scratch() as root:
        save, taken = Save(root, 1, [0, 1, 2, 3, 4]), {1}
        for act in acts:
            newest = save.paths.attempts / f"{newest_attempt(save.paths)}.json"
            if act == "tear":
                newest.write_bytes(b"")
            elif act == "lose" and len(taken) > 1:
                (save.paths.attempts / f"{min(taken)}.json").unlink(missing_ok=True)
            else:
                number = save.begin()
                assert number not in taken and number > max(taken)
                taken.add(number)


def test_of_two_that_saw_the_same_newest_attempt_one_takes_the_next_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Save(tmp_path, 1, [0, 1, 2, 3, 4])
    first = (save.paths.attempts / "1.json").read_bytes()
    monkeypatch.setattr(chain, "newest_attempt", lambda paths: 0)  # as read before the other's file was there
    assert save.begin("step-00000010.1") == 2
    assert (save.paths.attempts / "1.json").read_bytes() == first


CUTS = [0, 8192, 12288, 16384, 20480]


@pytest.mark.parametrize("already", ["directory", "file"])
def test_a_name_that_exists_is_refused(tmp_path: Path, already: str) -> None:
    """e1b: what exists is never written again, not even the part of one rank."""
    save = Save(tmp_path, 2, CUTS)
    directory = save.paths.checkpoints / Position(save.attempt, 10).name
    directory.mkdir()
    if already == "file":
        (directory / data_name(1)).write_bytes(b"older")
    with pytest.raises(FileExistsError):
        save.write(0 if already == "directory" else 1, 10, PosixStorage())
    assert already == "directory" or (directory / data_name(1)).read_bytes() == b"older"


def overtaken(save: Save) -> None:
    save.begin()


def cancelled(save: Save) -> None:
    (save.root / "outcome.0.cancel").touch()


def acked_by_another_save(save: Save) -> None:
    other = save.run(5, PosixStorage())
    shutil.copy(other / ack_name(1), save.paths.checkpoints / Position(save.attempt, 10).name / ack_name(1))


def shortened(save: Save) -> None:
    faults.damage(save.paths, Position(save.attempt, 10), "truncate", rank=1)


def not_acked(save: Save) -> None:
    (save.paths.checkpoints / Position(save.attempt, 10).name / ack_name(1)).unlink()


def torn_ack(save: Save) -> None:
    path = save.paths.checkpoints / Position(save.attempt, 10).name / ack_name(1)
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("before", "says"),
    [
        (overtaken, "attempt 2 has begun; this one is 1"),
        (cancelled, "given up by its trainer"),
        (acked_by_another_save, "acknowledged as part of step-00000005.1"),
        (shortened, "acknowledged were 16384"),
        (not_acked, r"no acknowledgement from ranks \[1\] within 0.2 s"),
        (torn_ack, "torn or not a record"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_nobody_commits_what_is_not_his_or_not_whole(
    tmp_path: Path, before: Callable[[Save], None], says: str
) -> None:
    """Megatron-Bridge#6098 (a foreign request), #5842 (leftovers of another save), orbax#392 (an endless wait)."""
    save = Save(tmp_path, 2, CUTS)
    for rank in range(2):
        save.write(rank, 10, PosixStorage())
    before(save)
    with pytest.raises((CancelledError, TimeoutError, writer.DamageError), match=says):
        save.commit(10, PosixStorage())
    assert not (save.paths.checkpoints / Position(save.attempt, 10).name / COMMIT).exists()


def test_only_a_commit_of_this_directory_counts(tmp_path: Path) -> None:
    """A directory copied or renamed by hand is not the generation that its record names."""
    save = Save(tmp_path, 1, CUTS)
    directory = save.run(10, PosixStorage())
    shutil.copytree(directory, directory.with_name(Position(save.attempt, 20).name))
    problems = verify.verify_generation(directory.with_name(Position(save.attempt, 20).name))
    assert [problem.reason for problem in problems] == ["belongs to step-00000010.1"]
    assert candidates(save.paths)[-1] == Position(1, 10)
