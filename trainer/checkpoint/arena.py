"""The arena: shared memory that outlives the rank and holds its newest snapshots whole.

`<shm>/steadfast.<run>.<pod>/rank-00003.arena` holds the slots, `rank-00003.slot<i>.json` says what a slot
holds and is written last; without it a slot holds nothing. The arena goes with the pod, whose
/dev/shm it lies in. On a machine where pods share it, a lock held by every living rank protects a
directory from being swept.

Taking the pages and registering (pinning) them costs 0.3 s a GiB, once; registering pages that are there already
0.06 s. Threads do it beside the rendezvous and the first steps, slot by slot. A restore waits for its slot, since
pageable memory would take longer (docs/results/h200.md), and otherwise only the copy of the first snapshot waits.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from trainer.checkpoint.layout import Layout, stamp_into
from trainer.checkpoint.records import DamageError, Slot, load
from trainer.checkpoint.staging import PINNED_BYTES, pieces
from trainer.events import boot_id

log = logging.getLogger(__name__)

PREFIX = "steadfast."
SLOT_ALIGNMENT_BYTES = 2 << 20
ALLOCATE_TIMEOUT_S = 300.0
MADV_POPULATE_READ, MADV_POPULATE_WRITE = 22, 23
POPULATE_BYTES = 256 << 20
POPULATE_THREADS = min(16, os.cpu_count() or 1)
BLOCK_BYTES = 512
"""Unit of st_blocks."""


class ArenaError(Exception):
    """The memory that the settings ask for is not there. The message says what to change."""


class ArenaDirectory:
    """A pod's directory in shared memory, locked for as long as the process lives."""

    def __init__(self, shm: Path, run: str, pod: str) -> None:
        """Creates the directory and removes those of dead runs and dead pods beside it."""
        self.run, self.pod = run, pod
        self.path = shm / f"{PREFIX}{run}.{pod}"
        self.path.mkdir(parents=True, exist_ok=True)
        self._attached: dict[int, mmap.mmap] = {}
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        self._sweep()

    def attach(self, rank: int) -> None:
        """At the start of a process: map the arena that an earlier one left, and have its pages mapped meanwhile.

        Otherwise a restore takes millions of page faults: 1.9 s for 12 GB on an H200 host, 0.3 s without.
        """
        path = self.arena(rank)
        if path.exists() and path.stat().st_size:
            with path.open("r+b") as file:
                self._attached[rank] = mmap.mmap(file.fileno(), 0)
            memory = self._attached[rank]
            arguments = (memory, 0, len(memory), MADV_POPULATE_READ)
            threading.Thread(target=_populate, args=arguments, name="arena-map", daemon=True).start()

    def mapped(self, rank: int, total_bytes: int) -> mmap.mmap | None:
        """What `attach` has mapped, if it has that size."""
        attached = self._attached.pop(rank, None)
        return attached if attached is not None and len(attached) == total_bytes else None

    def _sweep(self) -> None:
        for other in self.path.parent.glob(f"{PREFIX}*"):
            if other != self.path and _abandoned(other):
                log.info("removing %s, whose processes are gone", other)
                shutil.rmtree(other, ignore_errors=True)

    def close(self) -> None:
        """Let go; the files stay for the next attempt in this pod."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def slots(self, rank: int) -> dict[int, Slot]:
        """The whole snapshots that `rank` left here, by slot. Another run's, pod's or boot's is none."""
        found = {}
        for index in range(2):
            with contextlib.suppress(DamageError):
                slot = load(Slot, self.slot_record(rank, index))
                if (slot.run, slot.pod, slot.boot, slot.rank) == (self.run, self.pod, boot_id(), rank):
                    found[index] = slot
        return found

    def slot_record(self, rank: int, index: int) -> Path:
        """Where the record of a slot is."""
        return self.path / f"rank-{rank:05}.slot{index}.json"

    def arena(self, rank: int) -> Path:
        """Where a rank's slots are."""
        return self.path / f"rank-{rank:05}.arena"

    def outcome(self, rank: int, generation: str) -> Path:
        """The stem of what the writer reports about a save."""
        return self.path / f"rank-{rank:05}.{generation}"

    def forget(self, rank: int) -> None:
        """Remove a rank's slots and reports."""
        self._attached.pop(rank, None)
        for path in self.path.glob(f"rank-{rank:05}.*"):
            path.unlink(missing_ok=True)


def forget_snapshots(shm: Path, run: str, pod: str) -> None:
    """Have no slot of a pod hold anything any more: the next restore reads storage. For faults."""
    for record in (shm / f"{PREFIX}{run}.{pod}").glob("rank-*.slot*.json"):
        record.unlink(missing_ok=True)


def _populate(memory: mmap.mmap, start: int, end: int, advice: int) -> bool:
    """Take pages and fill the page tables, in parallel. False if the kernel refuses: before 5.14, or no room."""
    madvise = ctypes.CDLL(None).madvise
    anchor = ctypes.c_char.from_buffer(memory)  # as long as it lives, the map cannot be closed

    def populate(at: int) -> bool:
        size = min(POPULATE_BYTES, end - at)
        address = ctypes.c_void_p(ctypes.addressof(anchor) + at)
        return int(madvise(address, ctypes.c_size_t(size), advice)) == 0

    with ThreadPoolExecutor(POPULATE_THREADS, thread_name_prefix="arena-map") as pool:
        return all(pool.map(populate, range(start, end, POPULATE_BYTES)))


def _abandoned(path: Path) -> bool:
    try:
        fd = os.open(path / "lock", os.O_RDWR)
    except OSError:
        return path.is_dir()
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


class Arena:
    """A rank's slots, mapped. Slot i is a uint8 tensor of `slot_bytes`."""

    def __init__(
        self, directory: ArenaDirectory, rank: int, slot_bytes: int, count: int, device: torch.device
    ) -> None:
        """Maps what is there if it has the right size, else makes it anew. Raises ArenaError."""
        self.directory, self.rank, self.count = directory, rank, count
        self.slot_bytes = slot_bytes
        self._stride = -(-slot_bytes // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES
        self.path = directory.arena(rank)
        self._map = self._open()
        self._allocated = [threading.Event() for _ in range(count)]
        self._error: ArenaError | None = None
        threading.Thread(target=self._allocate, name="arena-allocate", daemon=True).start()
        self._address = 0
        self._device = device
        self._whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self._steady = [threading.Event() for _ in range(count)]
        self.registered = threading.Event()
        self.register_s = 0.0
        self._then: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._pinned: list[int] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def total_bytes(self) -> int:
        """Of all slots."""
        return self._stride * self.count

    def _open(self) -> mmap.mmap:
        if (attached := self.directory.mapped(self.rank, self.total_bytes)) is not None:
            return attached
        if not self.path.exists() or self.path.stat().st_size != self.total_bytes:
            self.directory.forget(self.rank)
            with self.path.open("wb") as file:
                file.truncate(self.total_bytes)
        with self.path.open("r+b") as file:
            return mmap.mmap(file.fileno(), self.total_bytes)

    def _allocate(self) -> None:
        """Take the pages: a write beyond the tmpfs's size would be SIGBUS (nccl#525).

        Many threads through the mapping are sooner done than one fallocate, which says what is wrong if they fail.
        """
        try:
            with self.path.open("r+b") as file:
                there = os.fstat(file.fileno()).st_blocks * BLOCK_BYTES >= self.total_bytes
                for index, allocated in enumerate(self._allocated):
                    at = self.slot_at(index)
                    if not there and not _populate(self._map, at, at + self._stride, MADV_POPULATE_WRITE):
                        os.posix_fallocate(file.fileno(), at, self._stride)
                    allocated.set()
        except OSError as error:
            self.path.unlink(missing_ok=True)  # what was taken goes with this process
            self._error = ArenaError(
                f"{self.path.parent} cannot hold {self.total_bytes / 2**30:.2f} GiB for rank {self.rank}: "
                f"{os.strerror(error.errno or 0)}. Enlarge the pod's /dev/shm (an emptyDir of medium Memory) "
                "or set checkpoint.host_slots to 1"
            )
        for allocated in self._allocated:
            allocated.set()

    def wait_allocated(self, index: int) -> None:
        """Before anything is written into a slot. Raises ArenaError."""
        if not self._allocated[index].wait(ALLOCATE_TIMEOUT_S):
            raise ArenaError(f"{self.path}: not allocated within {ALLOCATE_TIMEOUT_S} s")
        if self._error is not None:
            raise self._error

    def slot(self, index: int) -> torch.Tensor:
        """The memory of a slot."""
        at = self.slot_at(index)
        return self._whole[at : at + self.slot_bytes]

    def slot_at(self, index: int) -> int:
        """Where a slot begins in the file."""
        return index * self._stride

    def stamp(self, layout: Layout, index: int) -> None:
        """Put the constant bytes of the image into a slot. They are few, and checked to fit."""
        stamp_into(self.slot(index), layout)

    def record(self, index: int) -> Path:
        """Where the record of a slot is."""
        return self.directory.slot_record(self.rank, index)

    def invalidate(self, index: int) -> None:
        """Before the first byte of a slot changes."""
        self.record(index).unlink(missing_ok=True)

    def register(self, first: int) -> None:
        """Start pinning, once, with slot `first`."""
        if self._thread is None:
            order = sorted(range(self.count), key=lambda index: index != first)
            self._thread = threading.Thread(
                target=self._register, args=(order,), name="arena-register", daemon=True
            )
            self._thread.start()

    def when_registered(self, then: Callable[[], None]) -> None:
        """Call `then` once all is registered, at once if it is."""
        with self._lock:
            if not self.registered.is_set():
                self._then = then
                return
        then()

    def _register(self, order: list[int]) -> None:
        started = time.monotonic()
        for index in order:
            self._allocated[index].wait()
            if self._device.type == "cuda":
                self._pin(index)
            if self._stop.is_set():
                return
            self._steady[index].set()
        self.register_s = time.monotonic() - started
        with self._lock:
            self.registered.set()
        self._then()

    def _pin(self, index: int) -> None:
        torch.cuda.set_device(self._device)
        for start, end in pieces(0, self.slot_bytes, PINNED_BYTES):
            if self._stop.is_set():
                return
            at = self.slot_at(index) + start
            code = torch.cuda.cudart().cudaHostRegister(self._whole.data_ptr() + at, end - start, 0)
            if int(code) != 0:
                log.warning("cudaHostRegister: error %s; copies of snapshots are slower and block", code)
                return
            self._pinned.append(at)

    def wait_steady(self, index: int) -> None:
        """Before a slot is copied from while registering goes on: CUDA refuses memory that is half pinned."""
        if self._thread is not None:
            self._steady[index].wait(ALLOCATE_TIMEOUT_S)

    def close(self) -> None:
        """Unpin and unmap; the file stays."""
        self._stop.set()
        for allocated in self._allocated:
            allocated.wait(60)
        if self._thread is not None:
            self._thread.join(timeout=60)
        for start in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._whole.data_ptr() + start)
        del self._whole
        with contextlib.suppress(BufferError):  # a view is still held somewhere; the process's end unmaps it
            self._map.close()


def memory_limit_bytes() -> int:
    """The cgroup's limit, or the machine's memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(machine, int(Path(name).read_text()))
    return machine


def check_memory(total_bytes: int, ranks_here: int, fraction: float, shm: Path, slots: int) -> None:
    """Refuse before step 1 what would be killed at step 1000. `total_bytes` is one rank's. Raises ArenaError."""
    need, limit = total_bytes * ranks_here, memory_limit_bytes()
    fewer = " Set checkpoint.host_slots to 1, " if slots > 1 else " "
    if need > fraction * limit:
        raise ArenaError(
            f"snapshots of {ranks_here} ranks need {need / 2**30:.2f} GiB of host memory, more than "
            f"{fraction:.0%} of the {limit / 2**30:.2f} GiB limit.{fewer}"
            "raise the pod's memory, use more nodes, or raise checkpoint.max_host_fraction"
        )
    shm_bytes = os.statvfs(shm).f_frsize * os.statvfs(shm).f_blocks
    if need > shm_bytes:
        raise ArenaError(
            f"snapshots of {ranks_here} ranks need {need / 2**30:.2f} GiB in {shm}, which has "
            f"{shm_bytes / 2**30:.2f}.{fewer}enlarge the pod's /dev/shm (an emptyDir of medium Memory)"
        )
