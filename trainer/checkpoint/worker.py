"""NVRx's persistent worker process and request queue, and nothing else of NVRx.

Used: `AsyncCallsQueue` with `cpu_shm_mode=True` (no CUDA in the worker), its CPU and I/O priorities, and its
`PersistentAsyncCaller`, started early (forked, if it can be) and not waited for: a save needs the worker, a step
does not, and its imports take 1 to 3 s. Requests carry `preload_fn=None`; the queue is polled with `no_dist=True`
and never blocks: 0.2 ms a request.

Bypassed, because of what 0.7.0 does:
- `warmup_persistent_caller`, which does the same: until its first request the worker lies in a slot of the class,
  and `__del__` of any other queue, one that was just replaced, waits for it, ends it and empties the slot;
- the planner and `FileSystemWriterAsync`: plan, gather and metadata at each save; here all are constant;
- the results queue: after an abort it hands out results of the previous save (Megatron-Bridge#5117, #5842);
- finalize functions: collectives over the default group, also from `__del__` (seen after a restart);
- `close()`: joins without a bound and `schedule` on a dead worker says nothing (Megatron-LM#6970).
  The process is ended by its id instead, and it ends by itself 1 s after its trainer (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from trainer.checkpoint import writer

log = logging.getLogger(__name__)

NICE = 10
"""Once it has imported: a first save that is whole sooner is worth more than the import's share of a busy core."""
IO_IDLE = 3


class WriterProcess:
    """The writer of one rank: started early, looked after, replaced when it dies or sticks."""

    def __init__(self, scratch: Path, rank: int) -> None:
        """`scratch` is a directory in shared memory. Must run in a thread that lives as long as the writer:
        the kernel's parent-death signal goes by thread."""
        self._scratch, self._rank = scratch, rank
        self._queue: Any = None
        self._started = 0
        self._lingering: list[int] = []
        self._end_strays()
        self.replaced = 0
        """How often the process had to be replaced."""
        self._start()

    def _end_strays(self) -> None:
        """Writers of a dead trainer die with it, but one in state D may not have, and still read the arena."""
        for note in self._scratch.glob(f"writer.{self._rank}.*"):
            trainer, pid = int(note.name.split(".")[2]), int(note.read_text() or 0)
            if trainer != os.getpid() and is_writer(pid, note.stat().st_mtime):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                if not _gone(pid, timeout_s=1.0):
                    log.error("writer %s of the dead trainer %s hangs in the kernel", pid, trainer)
                    self._lingering.append(pid)
            note.unlink(missing_ok=True)

    def _start(self) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue, PersistentAsyncCaller

        options = {"cpu_priority": NICE, "io_priority": IO_IDLE, "cpu_shm_mode": True, "sigterm_timeout": 1.0}
        caller = PersistentAsyncCaller(**options)
        caller.rank = self._rank  # else it asks the default group
        with quiet_main(), deaf_to_sigterm(), forked_if_alone():
            caller._start_worker(self._rank)
        self._queue = AsyncCallsQueue(**options)
        self._queue.persistent_caller = caller
        self._started += 1
        self._ready.unlink(missing_ok=True)
        self._send(writer.adopt, os.getpid(), self._ready)

    @property
    def _ready(self) -> Path:
        return self._scratch / f"writer.{self._rank}.{os.getpid()}.{self._started}"

    @property
    def _process(self) -> Any:
        return self._queue.persistent_caller.process

    @property
    def pid(self) -> int:
        """Of the worker."""
        return int(self._process.pid)

    @property
    def ready(self) -> bool:
        """Whether it reads requests."""
        return self._ready.exists()

    @property
    def alive(self) -> bool:
        """Whether the process runs; NVRx itself never looks."""
        return self._process is not None and bool(self._process.is_alive())

    @property
    def uninterruptible(self) -> bool:
        """Whether it hangs in the kernel (state D), where no signal reaches it: a write that never returns."""
        try:
            return str(psutil.Process(self.pid).status()) == psutil.STATUS_DISK_SLEEP
        except psutil.Error:
            return False

    @property
    def stuck_pids(self) -> list[int]:
        """Replaced processes that the kernel has not let go of: they may still read the arena."""
        self._lingering = [pid for pid in self._lingering if _running(pid)]
        return self._lingering

    def submit(self, request: writer.Request) -> None:
        """Hand a save over; returns at once. Raises OSError if the worker is dead."""
        if not self.alive:
            raise OSError(f"the writer process {self.pid} of rank {self._rank} is dead")
        self._send(writer.handle, request)

    def _send(self, function: Callable[..., None], *args: Any) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest

        self._queue.schedule_async_request(AsyncRequest(function, args, []))
        self._queue.maybe_finalize_async_calls(blocking=False, no_dist=True)

    def replace(self) -> None:
        """End the process and start another. A process in state D ends whenever its write returns."""
        log.warning("replacing the writer process %s of rank %s", self.pid, self._rank)
        self._discard()
        self.replaced += 1
        self._start()

    def close(self) -> None:
        """End the process, bounded."""
        self._discard()

    def _discard(self) -> None:
        pid = self.pid
        if not discard(self._queue):
            self._lingering.append(pid)
        self._ready.unlink(missing_ok=True)

    def wait_ready(self, timeout_s: float) -> bool:
        """For tests and benchmarks; training never waits."""
        end = time.monotonic() + timeout_s
        while not self.ready and time.monotonic() < end:
            time.sleep(0.01)
        return self.ready


def discard(queue: Any) -> bool:
    """End a queue's worker in bounded time, which its own `close()` does not; False if the kernel keeps it."""
    caller = queue.persistent_caller
    process = caller.process
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    process.join(timeout=1.0)
    for channel in (caller.queue, caller.preload_q, caller.comp_q):
        channel.cancel_join_thread()
        channel.close()
    # so that NVRx's __del__ finds nothing to wait for
    queue.async_calls.clear()
    caller.process = queue.persistent_caller = None
    return not process.is_alive()


def is_writer(pid: int, noted_s: float) -> bool:
    """Whether `pid` is still the process that wrote its number down then."""
    try:
        process = psutil.Process(pid)
        return process.create_time() <= noted_s + 1 and str(process.name()) == writer.PROCESS_NAME
    except psutil.Error:
        return False


def _running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _gone(pid: int, timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    while _running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not _running(pid)


@contextlib.contextmanager
def deaf_to_sigterm() -> Iterator[None]:
    """What is started here ignores SIGTERM from its first instruction on: the mask is inherited.

    A planned stop signals the whole process group, and a writer that is still importing would die of it.
    """
    resource_tracker.ensure_running()  # its own start would unblock the signal again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def forked_if_alone() -> Iterator[None]:
    """Fork the worker, as long as this process has one thread; later, and with a GPU in use, NVRx spawns it.

    What is spawned imports torch again: 1.3 s beside the first steps after each restart here, 12 s on some hosts
    with a GPU, and 0.13 GB a rank. A child of a rank that has just begun has it all, and no lock that a thread
    holds.
    """
    from nvidia_resiliency_ext.checkpointing.async_ckpt import core

    if len(list(Path("/proc/self/task").iterdir())) > 1:
        yield
        return
    before = core.mp
    core.mp = SimpleNamespace(get_context=lambda _: multiprocessing.get_context("fork"))
    try:
        yield
    finally:
        core.mp = before


@contextlib.contextmanager
def quiet_main() -> Iterator[None]:
    """Keep `spawn` from importing the trainer's main module in the worker, which needs none of it."""
    import __main__

    spec, file = getattr(__main__, "__spec__", None), getattr(__main__, "__file__", None)
    if file is not None:
        del __main__.__file__
    __main__.__spec__ = None
    try:
        yield
    finally:
        __main__.__spec__ = spec
        if file is not None:
            __main__.__file__ = file
