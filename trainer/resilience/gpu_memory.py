"""Who holds a GPU's memory that ft_launcher waits for.

Between two starts of the ranks NVRx waits, up to `--ft-gpu-memory-reclaim-timeout`, until each GPU is empty, and
says only that it is not. What keeps it is mostly a process that outlived its rank: a loader's worker or a helper
that inherited the open devices (Megatron-LM#3684). It is named, and ended if it is of this pod: no rank lives at
that time. CUDA opens `nvidia-uvm`; who only asks for a GPU's state does not.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from trainer.launcher_log import GPU_MEMORY_HELD

log = logging.getLogger("steadfast.gpu_memory")

DEVICES = Path("/dev")
PATIENCE_S = 5.0
"""A driver frees some ten GB a second; what is still there after this long belongs to somebody."""
POD = "POD_UID"
NOBODY = "no process that can be seen from this pod: another pod's, or the driver"


@dataclass(frozen=True)
class Holder:
    """A process that uses a GPU."""

    process: psutil.Process
    words: str
    of_this_pod: bool


def holders(devices: Path = DEVICES) -> list[Holder]:
    """Processes that use a GPU, as far as they can be seen from here; not this one."""
    found = []
    for process in psutil.process_iter():
        opened = set(_opened(process.pid))
        if process.pid == os.getpid() or str(devices / "nvidia-uvm") not in opened:
            continue
        gpus = sorted(path for path in opened if path.removeprefix(f"{devices}/nvidia").isdigit())
        try:
            of_this_pod = POD in os.environ and process.environ().get(POD) == os.environ[POD]
            found.append(Holder(process, f"{_described(process)} with {', '.join(gpus)}", of_this_pod))
        except psutil.Error:
            continue
    return found


def _described(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())[:120] or process.name()
    age_s = time.time() - process.create_time()
    return f"pid {process.pid} ({words}; {age_s:.0f} s old, child of {process.ppid()})"


def _opened(pid: int) -> Iterator[str]:
    """Files and devices that a process has open, as far as one may look."""
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return
    for link in links:
        try:
            yield str(link.readlink())
        except OSError:
            continue


def end_holders(devices: Path = DEVICES) -> None:
    """Name who holds a GPU, in the log from where `trainer.launch` takes it into the ledger; end this pod's."""
    found = holders(devices)
    words = [f"{holder.words}{', ended now' if holder.of_this_pod else ''}" for holder in found]
    log.warning("%s after %g s by %s", GPU_MEMORY_HELD, PATIENCE_S, "; ".join(words) or NOBODY)
    for holder in found:
        if holder.of_this_pod:
            try:
                holder.process.kill()
            except psutil.Error as error:
                log.warning("pid %d was not ended: %s", holder.process.pid, error)


def watch() -> None:
    """From now on, in this process: a wait for GPU memory that takes long finds out for whom."""
    from nvidia_resiliency_ext.fault_tolerance.launcher import LocalElasticAgent as Agent

    wait = Agent._wait_for_gpu_memory_reclaim

    def wait_and_watch(self: Any, num_gpus: int) -> None:
        timer = threading.Timer(PATIENCE_S, end_holders)
        timer.daemon = True
        timer.start()
        try:
            wait(self, num_gpus)
        finally:
            timer.cancel()

    Agent._wait_for_gpu_memory_reclaim = wait_and_watch
