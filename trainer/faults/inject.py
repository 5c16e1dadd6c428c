"""Faults done by a rank to itself, once per run whatever restarts, and never before their record is on disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.events import Event, Ledger
from trainer.faults.schema import FROM_OUTSIDE, Fault, FaultClass, Phase

MAP_NORESERVE = 0x4000
HOARD_BYTES = 1 << 42
"""Of address space: more than any host has."""


class InjectedError(RuntimeError):
    """What the `exception` fault raises."""


@dataclass(frozen=True)
class Hooks:
    """Where faults reach into the trainer: the next loss, and the writer's storage."""

    poison: Callable[[], None]
    break_storage: Callable[[Fault], None]


class Injector:
    """Strikes when this rank is at a fault's step and phase."""

    def __init__(self, faults: list[Fault], events: Path, *, pod: str) -> None:
        self._all = faults
        self._faults = [fault for fault in faults if fault.class_ not in FROM_OUTSIDE]
        self._events, self._pod = events, pod
        self._slow: dict[str, int] = {}

    def at(self, phase: Phase, step: int, rank: int, hooks: Hooks) -> None:
        """Call at the start of each phase of each step. May not return."""
        for fault in self._faults:
            if fault.rank == rank and self._is_due(fault, phase, step) and self._claim(fault):
                self._act(fault, hooks)
        self._slow_down(step)

    def _is_due(self, fault: Fault, phase: Phase, step: int) -> bool:
        if fault.phase is Phase.RECOVERY:
            return phase is Phase.LOAD and self._is_recovering(fault)
        return (fault.phase, fault.step) == (phase, step)

    def _is_recovering(self, fault: Fault) -> bool:
        """Another fault of the same step has struck: what loads now is on its way back from that."""
        others = [other for other in self._all if other.step == fault.step and other.id != fault.id]
        return any((self._events / f"fault-{other.id}.jsonl").exists() for other in others)

    def _claim(self, fault: Fault) -> bool:
        """The fault's record, made by exclusive creation: whoever comes after a restart finds it fired."""
        try:
            ledger = Ledger(self._events, f"fault-{fault.id}", pod=self._pod, exclusive=True)
        except FileExistsError:
            return False
        ledger.write(
            Event.FAULT_INJECTED,
            sync=True,
            id=fault.id,
            step=fault.step,
            fault_rank=fault.rank,
            **{"class": fault.class_.value},
        )
        ledger.close()
        return True

    def _act(self, fault: Fault, hooks: Hooks) -> None:
        match fault.class_:
            case FaultClass.EXCEPTION:
                raise InjectedError(f"fault {fault.id}: exception at step {fault.step}")
            case FaultClass.COLLECTIVE_HANG:
                while True:
                    time.sleep(0.05)
            case FaultClass.SIGSTOP | FaultClass.SIGKILL | FaultClass.SIGTERM:
                os.kill(os.getpid(), getattr(signal, fault.class_.upper()))
            case FaultClass.OOM:
                _eat_memory()
            case FaultClass.GIL_HANG:
                ctypes.PyDLL(None).sleep(int(fault.duration_s or 100_000))
            case FaultClass.NAN:
                hooks.poison()
            case FaultClass.SLOW_RANK:
                self._slow[fault.id] = fault.step + fault.num_steps
            case _:
                hooks.break_storage(fault)

    def _slow_down(self, step: int) -> None:
        for fault in self._faults:
            if step < self._slow.get(fault.id, 0):
                time.sleep(fault.duration_s or 1.0)


def _eat_memory() -> None:
    """Take memory until the kernel ends this process (it prefers the one with the highest score).

    In one call that keeps Python's lock: an in-process restart would give back what is taken. Where the kernel
    needs longer than the hang limits, the process is ended by those.
    """
    Path("/proc/self/oom_score_adj").write_text("1000")
    hoard = mmap.mmap(-1, HOARD_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    hoard.madvise(mmap.MADV_HUGEPAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(hoard))
    ctypes.PyDLL(None).memset(ctypes.c_void_p(start), 1, ctypes.c_size_t(HOARD_BYTES))
