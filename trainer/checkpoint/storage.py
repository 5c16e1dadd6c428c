"""The one door to the file system: checked calls, and the seam through which storage faults are injected.

Imports no torch: the writer process uses it. Every call names the path it failed on.
`FaultyStorage` obeys `storage-faults/` in the run directory (see `faults.py`), so a fault armed by any
process acts in every writer of the run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from trainer.files import temporary_beside

ALIGNMENT_BYTES = 4096


class Storage(Protocol):
    """What the protocol asks of a file system. Every method raises OSError."""

    def reach(self, point: str, path: Path) -> None:
        """A named point of the protocol has been reached; only faults do something here."""

    def make_directory(self, path: Path) -> None:
        """Create a directory that must not exist, and make the entry durable."""

    def create(self, path: Path) -> int:
        """Create a file that must not exist; returns its descriptor."""

    def write(self, fd: int, data: memoryview, offset: int, path: Path) -> None:
        """Write all of `data` at `offset`."""

    def fsync(self, fd: int, path: Path) -> None:
        """Make a file's content durable."""

    def close(self, fd: int, path: Path) -> None:
        """Close; a file system may report a failed write only here."""

    def fsync_directory(self, path: Path) -> None:
        """Make a directory's entries durable."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` by `source` in one step."""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the path into errors of calls on descriptors, which don't carry one."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno or errno.EIO), str(path)) from error


class PosixStorage:
    """A POSIX file system: local disk, tmpfs, Lustre."""

    def reach(self, point: str, path: Path) -> None:
        """Nothing happens without a fault."""

    def make_directory(self, path: Path) -> None:
        """See `Storage`."""
        path.mkdir()
        self.fsync_directory(path.parent)

    def create(self, path: Path) -> int:
        """See `Storage`. Takes O_DIRECT where the file system has it: the page cache belongs to training."""
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            direct = os.open(path, os.O_WRONLY | os.O_DIRECT)
        except OSError:
            return fd
        os.close(fd)
        return direct

    def write(self, fd: int, data: memoryview, offset: int, path: Path) -> None:
        """See `Storage`."""
        done = 0
        with naming(path):
            while done < len(data):
                done += os.pwrite(fd, data[done:], offset + done)

    def fsync(self, fd: int, path: Path) -> None:
        """See `Storage`."""
        with naming(path):
            os.fsync(fd)

    def close(self, fd: int, path: Path) -> None:
        """See `Storage`."""
        with naming(path):
            os.close(fd)

    def fsync_directory(self, path: Path) -> None:
        """See `Storage`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with naming(path):
                os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """See `Storage`."""
        source.rename(target)


def write_file(storage: Storage, path: Path, data: bytes) -> None:
    """Create `path`, which must not exist, with durable content and entry."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    try:
        storage.write(fd, memoryview(data), 0, path)
        storage.fsync(fd, path)
    except BaseException:
        os.close(fd)
        raise
    storage.close(fd, path)
    storage.fsync_directory(path.parent)


def publish(storage: Storage, path: Path, data: bytes) -> None:
    """Make `path` appear with all of `data`, durable, or not at all. A failure leaves nothing behind."""
    temporary = temporary_beside(path)
    temporary.unlink(missing_ok=True)  # of a process with this number that was killed here
    try:
        write_file(storage, temporary, data)
        storage.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    storage.fsync_directory(path.parent)


def remove_tree(path: Path, first: str) -> None:
    """Delete a directory, the file called `first` before all others, so that half a deletion commits nothing."""
    with contextlib.suppress(FileNotFoundError):
        (path / first).unlink()
        PosixStorage().fsync_directory(path)
    shutil.rmtree(path, ignore_errors=True)
