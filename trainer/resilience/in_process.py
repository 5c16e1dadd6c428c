"""NVRx's in-process restart around the training function: soft faults, without losing the process.

A layer one switches on: NVIDIA deprecates it from 0.6 on, and it has preconditions (`preconditions`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from nvidia_resiliency_ext.inprocess import CallWrapper, Compose, Wrapper
from nvidia_resiliency_ext.inprocess.abort import Abort, AbortTorchDistributed
from nvidia_resiliency_ext.inprocess.finalize import Finalize
from nvidia_resiliency_ext.inprocess.initialize import RetryController
from nvidia_resiliency_ext.inprocess.rank_assignment import ActivateAllRanks, ShiftRanks
from nvidia_resiliency_ext.inprocess.store import StoreMixin
from torch.distributed.distributed_c10d import PrefixStore

from trainer.resilience.control import connect_store, cycle_prefix
from trainer.resilience.thread_state import renew_thread_state
from trainer.timeouts import Timeouts

BROKEN_NCCL = ((2, 28, 3), (2, 28, 8))
"""First and last NCCL that crash when communicators are aborted (NVRx 0.5 release notes)."""
OLDEST_NCCL = (2, 26, 2)


class OutsideStore(PrefixStore, StoreMixin):
    """NVRx's own store, but kept by the control pod: rank 0 may die like any other."""

    def __init__(self, timeout_s: float) -> None:
        self._client = connect_store(timeout_s)
        super().__init__(f"{cycle_prefix()}/in-process", self._client)


class _Tell(Abort):
    """Calls back when NVRx has told this rank of a fault, before communicators are aborted."""

    def __init__(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def __call__(self, state: Any) -> Any:
        self._callback(state)
        return state


class _Finalize(Finalize):
    def __init__(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback

    def __call__(self, state: Any) -> Any:
        self._callback(state)
        return state


def preconditions() -> list[str]:
    """What forbids in-process restart on this machine, each with what to change; empty on CPU."""
    if not torch.cuda.is_available():
        return []
    problems = []
    version = torch.cuda.nccl.version()
    if version < OLDEST_NCCL or BROKEN_NCCL[0] <= version <= BROKEN_NCCL[1]:
        problems.append(
            f"NCCL {'.'.join(map(str, version))} cannot abort safely; use 2.26.2 to 2.28.2 or 2.28.9 and newer, "
            "or set recovery.in_process: false"
        )
    for name, wanted in (("NCCL_NVLS_ENABLE", "0"), ("TORCH_NCCL_RETHROW_CUDA_ERRORS", "0")):
        if os.environ.get(name) != wanted:
            problems.append(
                f"{name} is {os.environ.get(name)!r}; in-process restart needs {wanted!r} in the pod's "
                "environment, or set recovery.in_process: false"
            )
    return problems


def wrap(
    function: Callable[[CallWrapper], Any],
    *,
    timeouts: Timeouts,
    world_size: int,
    on_fault: Callable[[Any], None],
    on_release: Callable[[Any], None],
) -> Callable[[], Any]:
    """`function` called again in the same process after a fault that left every process alive.

    `on_fault` runs in NVRx's monitor thread, `on_release` in the main thread after the communicators are gone;
    both get NVRx's frozen state. A process that dies ends this layer at once (`min_world_size`): ft_launcher's.
    """
    # NVRx adds GPU health checks when LOCAL_RANK is set; without NVML they fail and end the rank.
    local_rank = None if torch.cuda.is_available() else os.environ.pop("LOCAL_RANK", None)
    try:
        wrapper = Wrapper(
            store_factory=OutsideStore,
            store_kwargs={"timeout_s": timeouts.start_s},
            initialize=RetryController(min_world_size=world_size),
            abort=Compose(AbortTorchDistributed(), _Tell(on_fault)),  # the last one runs first
            finalize=_Finalize(on_release),
            rank_assignment=Compose(ActivateAllRanks(), ShiftRanks()),
            monitor_thread_interval=timedelta(seconds=0.1),
            monitor_process_interval=timedelta(seconds=0.25),
            heartbeat_interval=timedelta(seconds=0.5),
            progress_watchdog_interval=timedelta(seconds=0.25),
            last_call_wait=timedelta(seconds=0.1),
            soft_timeout=timedelta(seconds=timeouts.soft_s),
            hard_timeout=timedelta(seconds=timeouts.hard_s),
            heartbeat_timeout=timedelta(seconds=timeouts.hard_s),
            barrier_timeout=timedelta(seconds=timeouts.barrier_s),
            completion_timeout=timedelta(seconds=timeouts.barrier_s),
            termination_grace_time=timedelta(seconds=1),
        )
    finally:
        if local_rank is not None:
            os.environ["LOCAL_RANK"] = local_rank

    def call(call_wrapper: Any = None) -> Any:
        renew_thread_state()
        return function(call_wrapper)

    call.__annotations__["call_wrapper"] = CallWrapper  # NVRx injects by the annotation, as a type
    return wrapper(call)
