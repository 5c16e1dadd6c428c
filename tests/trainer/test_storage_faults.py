"""Storage faults of a fault file, beside writers at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_writers import World, started, wait_until

from trainer.checkpoint import faults
from trainer.checkpoint.chain import Position, saves_under_way
from trainer.checkpoint.faults import StorageFault
from trainer.checkpoint.records import METADATA
from trainer.checkpoint.verify import verify_generation
from trainer.faults.inject import InjectedError
from trainer.faults.schema import load_dumped
from trainer.faults.storage import break_storage
from trainer.paths import PodContext

pytestmark = pytest.mark.integration


def test_what_is_being_committed_is_what_gets_damaged(tmp_path: Path) -> None:
    """The restart would read it instead, and the fault would have shown nothing."""
    world = World(tmp_path)
    world.save(10)
    faults.arm(world.paths, StorageFault("slow", "fenced", "delay", delay_s=0.7, rank=0, from_step=20, saves=1))
    writers = started(world.requests(20))
    wait_until((world.paths.checkpoints / "step-00000020.1" / METADATA).exists)
    assert saves_under_way(world.paths) == [Position(1, 20)]
    context = PodContext("r", world.paths, tmp_path, world.scratch, "p", "127.0.0.1", "n", "{}", "[]")
    (fault,) = load_dumped('[{"id": "rot", "class": "corrupt_checkpoint", "rank": 0, "step": 22}]')
    with pytest.raises(InjectedError, match=r"step-00000020\.1"):
        break_storage(context, fault)
    for process in writers:
        process.join(20)
    assert verify_generation(world.paths.checkpoints / "step-00000020.1")
    assert not verify_generation(world.paths.checkpoints / "step-00000010.1")
    assert saves_under_way(world.paths) == []
