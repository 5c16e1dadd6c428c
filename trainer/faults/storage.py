"""Storage faults of a fault file, as what the checkpoint writers understand."""

from __future__ import annotations

from trainer.checkpoint import faults
from trainer.checkpoint.arena import forget_snapshots
from trainer.checkpoint.chain import candidates
from trainer.faults.inject import InjectedError
from trainer.faults.schema import Fault, FaultClass
from trainer.paths import PodContext

SLOW_FSYNC_S = 5.0


def break_storage(context: PodContext, fault: Fault) -> None:
    """Arm the writers of the fault's rank, or damage the newest committed generation.

    Damage alone would be noticed whenever storage is next read. So what this pod holds in memory is given up and
    the rank raises (InjectedError): the restart must read storage, and fall back.
    """
    paths = context.paths
    if fault.class_ is FaultClass.CORRUPT_CHECKPOINT:
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
