"""Storage faults: armed by a file in the run directory, acted in the writer processes. Imports no torch.

    arm(paths, StorageFault(id="disk-full", point="write", action="ENOSPC", rank=1, saves=1))

writes `<run>/storage-faults/disk-full.json`; every writer looks there at the start of each save. An action that is
a `Damage` harms what the save has written by then; `damage(...)` harms a committed generation, as rotten storage
would.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal, cast, get_args

from trainer.checkpoint.chain import Position, parse_position
from trainer.checkpoint.records import COMMIT, METADATA, data_name
from trainer.checkpoint.storage import PosixStorage, Storage
from trainer.files import write_whole
from trainer.paths import RunPaths

FOLDER = "storage-faults"
POINTS = (
    "mkdir", "create", "write", "fsync", "close", "rename",  # calls
    "started", "made", "written", "acked", "gathered", "described", "fenced", "committed", "pruned",
)  # fmt: skip
"""Calls of `Storage`, and the points of the protocol in order (writer.py)."""
Damage = Literal["flip", "truncate", "remove", "empty", "unreadable", "torn-commit", "foreign-metadata", "stale"]
Action = Literal["ENOSPC", "EIO", "delay", "kill", "stop"] | Damage


@dataclass(frozen=True)
class StorageFault:
    """One fault. `saves` bounds how many generations of a rank it hits, counted from `from_step` on."""

    id: str
    point: str
    action: Action
    rank: int | None = None
    from_step: int = 0
    saves: int | None = None
    delay_s: float = 0.0
    after_bytes: int = 0


def arm(paths: RunPaths, *faults: StorageFault) -> None:
    """Add faults to those of the run. Raises ValueError for an unknown point."""
    unknown = sorted({fault.point for fault in faults} - set(POINTS))
    if unknown:
        raise ValueError(f"no such point: {', '.join(unknown)}; there are {', '.join(POINTS)}")
    folder = paths.root / FOLDER
    folder.mkdir(exist_ok=True)
    for fault in faults:  # each a file of its own: ranks may arm theirs at the same moment
        write_whole(folder / f"{fault.id}.json", json.dumps(asdict(fault)).encode())


def disarm(paths: RunPaths) -> None:
    """No more faults."""
    for path in (paths.root / FOLDER).glob("*.json"):
        path.unlink(missing_ok=True)


def armed(paths: RunPaths) -> list[StorageFault]:
    """The run's faults."""
    return [StorageFault(**json.loads(path.read_text())) for path in sorted((paths.root / FOLDER).glob("*.json"))]


def storage_for(paths: RunPaths, *, rank: int, step: int, generation: str) -> Storage:
    """The storage that one save of one rank writes through."""
    faults = [fault for fault in armed(paths) if _applies(paths, fault, rank, step, generation)]
    position = parse_position(generation)
    if not faults or position is None:
        return PosixStorage()
    return FaultyStorage(faults, partial(damage, paths, position, rank=rank))


def _applies(paths: RunPaths, fault: StorageFault, rank: int, step: int, generation: str) -> bool:
    if fault.rank not in (None, rank) or step < fault.from_step:
        return False
    if fault.saves is None:
        return True
    # counted in a file, since a writer may have been killed by this very fault
    tally = paths.root / FOLDER / f"{fault.id}.{rank}.hit"
    hit = tally.read_text().split() if tally.exists() else []
    if generation in hit:
        return True
    if len(hit) >= fault.saves:
        return False
    with tally.open("a") as file:
        file.write(generation + "\n")
    return True


class FaultyStorage(PosixStorage):
    """POSIX storage that fails, dawdles or dies where it is told to."""

    def __init__(self, faults: list[StorageFault], harm: Callable[[Damage], object]) -> None:
        self._faults, self._harm = faults, harm
        self._written_bytes = 0

    def _act(self, point: str, path: Path) -> None:
        for fault in self._faults:
            if fault.point != point or self._written_bytes < fault.after_bytes:
                continue
            if fault.action in get_args(Damage):
                self._harm(cast(Damage, fault.action))
            else:
                _commit_fault(fault, path)

    def reach(self, point: str, path: Path) -> None:
        """A point of the protocol."""
        self._act(point, path)

    def make_directory(self, path: Path) -> None:
        """`mkdir`."""
        self._act("mkdir", path)
        super().make_directory(path)

    def create(self, path: Path) -> int:
        """`create`."""
        self._act("create", path)
        return super().create(path)

    def write(self, fd: int, data: memoryview, offset: int, path: Path) -> None:
        """`write`, from `after_bytes` on."""
        self._act("write", path)
        super().write(fd, data, offset, path)
        self._written_bytes += len(data)

    def fsync(self, fd: int, path: Path) -> None:
        """`fsync`."""
        self._act("fsync", path)
        super().fsync(fd, path)

    def close(self, fd: int, path: Path) -> None:
        """`close`: some file systems tell of a failed write only here."""
        super().close(fd, path)
        self._act("close", path)

    def rename(self, source: Path, target: Path) -> None:
        """`rename`."""
        self._act("rename", target)
        super().rename(source, target)


def _commit_fault(fault: StorageFault, path: Path) -> None:
    if fault.action == "delay":
        time.sleep(fault.delay_s)
    elif fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        number = errno.ENOSPC if fault.action == "ENOSPC" else errno.EIO
        raise OSError(number, os.strerror(number), str(path))


def damage(paths: RunPaths, generation: Position, kind: Damage, *, rank: int = 0, at: float = 0.5) -> Path:
    """Harm a committed generation: `rank`'s file, or its records. Returns the file that was harmed."""
    directory = paths.checkpoints / generation.name
    if kind == "torn-commit":
        path = directory / COMMIT
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return path
    if kind == "foreign-metadata":
        path = directory / METADATA
        path.write_bytes(path.read_bytes()[::-1])
        return path
    if kind == "stale":  # the record of another generation
        others = [p for p in sorted(paths.checkpoints.glob(f"step-*/{COMMIT}")) if p.parent != directory]
        (directory / COMMIT).write_bytes(others[0].read_bytes() if others else b"{}")
        return directory / COMMIT
    path = directory / data_name(rank)
    _damage_file(path, kind, at)
    return path


def _damage_file(path: Path, kind: Damage, at: float) -> None:
    size = path.stat().st_size
    if kind == "remove":
        path.unlink()
    elif kind == "unreadable":  # reads fail, whoever asks: mode bits don't stop root
        path.unlink()
        path.mkdir()
    elif kind == "flip":
        with path.open("r+b") as file:
            file.seek(int(size * at))
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 0x40]))
    else:
        os.truncate(path, 0 if kind == "empty" else size // 2)
