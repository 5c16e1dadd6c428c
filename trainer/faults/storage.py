"""Storage faults of a fault file, as what the checkpoint writers understand."""

from __future__ import annotations

import time

from trainer.checkpoint import faults
from trainer.checkpoint.arena import forget_snapshots
from trainer.checkpoint.chain import candidates, saves_under_way
from trainer.faults.inject import InjectedError
from trainer.faults.schema import Fault, FaultClass
from trainer.paths import PodContext, RunPaths

POLL_S = 0.02
SLOW_FSYNC_S = 5.0
SETTLE_S = 2.0
"""Below what the other ranks wait for this one in a collective."""


def break_storage(context: PodContext, fault: Fault) -> None:
    """Arm the writers of the fault's rank, or damage the newest committed generation.

    Damage alone would be noticed whenever storage is next read. So what this pod holds in memory is given up and
    the rank raises (InjectedError): the restart must read storage, and fall back.
    """
    paths = context.paths
    if fault.class_ is FaultClass.CORRUPT_CHECKPOINT:
        _let_saves_end(paths)
        damaged = candidates(paths)[:1]
        for newest in damaged:
            faults.damage(paths, newest, "flip", rank=fault.rank)
        forget_snapshots(context.shm, context.run, context.pod)
        raise InjectedError(f"fault {fault.id}: {[g.name for g in damaged]} damaged at step {fault.step}")
    full = fault.class_ is FaultClass.ENOSPC
    faults.arm(
        paths,
        faults.StorageFault(
            id=fault.id,
            point="write" if full else "fsync",
            action="ENOSPC" if full else "delay",
            rank=fault.rank,
            from_step=fault.step,
            saves=fault.num_steps,
            delay_s=fault.duration_s or SLOW_FSYNC_S,
        ),
    )


def _let_saves_end(paths: RunPaths) -> None:
    """Bounded: the restart would read a generation that is committed after the damage, and never meet that."""
    end_s = time.monotonic() + SETTLE_S
    while saves_under_way(paths) and time.monotonic() < end_s:
        time.sleep(POLL_S)
