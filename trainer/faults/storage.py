"""Storage faults of a fault file, as what the checkpoint writers understand."""

from __future__ import annotations

from trainer.checkpoint import faults
from trainer.checkpoint.chain import candidates
from trainer.faults.schema import Fault, FaultClass
from trainer.paths import RunPaths

SLOW_FSYNC_S = 5.0


def break_storage(paths: RunPaths, fault: Fault) -> None:
    """Arm the writers of the fault's rank, or damage the newest committed generation."""
    if fault.class_ is FaultClass.CORRUPT_CHECKPOINT:
        for newest in candidates(paths)[:1]:
            faults.damage(paths, newest, "flip", rank=fault.rank)
        return
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
