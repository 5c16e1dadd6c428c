"""Two ranks, and slots of the arena that a slow or stuck writer reads."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from trainer.checkpoint.chain import Position, candidates
from trainer.checkpoint.faults import StorageFault, arm

pytestmark = pytest.mark.integration

EVERY_2 = {"persist_every": 2}


def test_slow_storage_does_not_make_the_memory_old(run: Any) -> None:
    """What storage cannot take yet is kept in memory at least, so that a kill costs no more than usual."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=60.0, saves=1))
    orders = [order for step in (2, 4, 6, 8) for order in (["train", step], ["sleep", 0.6])]
    run.run(["start"], *orders, ["kill", -1], config={**EVERY_2, "overlap": "skip"})
    assert run.generations() == []
    assert "persist" in {event["kind"] for event in run.events("save_skipped")}
    again = run.run(["start"], config=EVERY_2)
    # a decision falls a step ahead: on a busy machine the snapshot before may not be known to be whole then
    assert again.one("open", "tier") == "memory" and again.one("open", "step") in (6, 8)


def test_with_one_slot_snapshots_wait_for_the_write_of_the_last(run: Any) -> None:
    """The writer still reads the only slot: steps that wait for it would stand still, and saves would fail."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=1.2, saves=1))
    config = {"persist_every": 4, "snapshot_every": 5, "host_slots": 1, "overlap": "skip"}
    ranks = run.run(["start"], ["train", 12], ["finish"], config=config, step_s=0.1)
    assert ranks.codes == [0, 0] and ranks.one("finished", "committed") is True
    assert not run.events("save_failed")
    assert max(event["launch_s"] for event in run.events("snapshot") if event["step"] < 12) < 1.0
    assert {event["kind"] for event in run.events("save_skipped")} == {"persist", "snapshot"}


def test_slow_storage_never_counts_as_failing_saves(run: Any) -> None:
    """Both slots are taken: what cannot begin on all ranks is skipped on all ranks."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=1.2, saves=1))
    config = {"persist_every": 1, "tolerate_failures": 0, "overlap": "skip"}
    ranks = run.run(["start"], ["train", 12], ["finish"], config=config, step_s=0.1)
    assert ranks.codes == [0, 0] and ranks.one("finished", "committed") is True
    assert not run.events("save_failed")


def test_a_stop_waits_for_a_slot(run: Any) -> None:
    """The only one is being written: the stop is what everything was saved for."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=1.2, saves=1))
    ranks = run.run(
        ["start"], ["train", 4], ["sleep", 0.5], ["request_stop", 0], ["train", 100], ["finish"],
        config={"persist_every": 4, "host_slots": 1, "overlap": "skip"}, step_s=0.1,
    )  # fmt: skip
    step = ranks.one("stopping", "step")
    assert ranks.one("finished", "committed") is True
    assert candidates(run.paths)[0] == Position(1, step)


def test_a_kill_between_neighbouring_saves_finds_a_whole_snapshot(run: Any) -> None:
    """Both slots would be filled anew at once if a persist followed a snapshot by a step."""
    config = {"persist_every": 10, "snapshot_every": 3, "overlap": "skip"}
    run.run(
        ["start"], ["train", 3], ["drain"], ["sleep", 0.3], ["train", 6], ["drain"], ["sleep", 0.3],
        ["signal_writer", signal.SIGSTOP], ["train", 12], ["sleep", 0.5], ["kill", -1], config=config,
    )  # fmt: skip
    again = run.run(["start"], config=config)
    assert again.one("open", "tier") == "memory" and again.one("open", "step") >= 3


def test_a_snapshots_failure_is_not_the_last_saves(run: Any) -> None:
    """Both are of one step; and snapshots for memory alone do not count as failed saves."""
    ranks = run.run(
        ["start"], ["train", 3], ["sleep", 0.5], ["signal_writer", signal.SIGSTOP, 1], ["train", 4],
        ["sleep", 0.5], ["signal_writer", signal.SIGKILL, 1], ["sleep", 1.0], ["finish"],
        config={"persist_every": 100, "snapshot_every": 4, "tolerate_failures": 0},
    )  # fmt: skip
    assert ranks.codes == [0, 0], ranks.heard
    assert ranks.one("finished", "committed") is True
    assert not run.events("save_failed")


@pytest.mark.parametrize(("host_slots", "snapshot_every", "kept"), [(2, 5, 10), (1, 8, 8)])
def test_a_restart_does_not_wait_for_storage(run: Any, host_slots: int, snapshot_every: int, kept: int) -> None:
    """A write that was given up keeps its slot until its fsync is over, and nothing else."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=4.0, saves=1))
    ranks = run.run(
        ["start"], ["train", 8], ["sleep", 0.5], ["abort"], ["start"], ["train", 12], ["sleep", 0.5], ["abort"],
        ["start"], ["train", 25], ["finish"], step_s=0.1,
        config={
            "persist_every": 8, "snapshot_every": snapshot_every, "host_slots": host_slots, "overlap": "skip"
        },
    )  # fmt: skip
    assert ranks.codes == [0, 0] and ranks.one("finished", "committed") is True
    assert max(said["took_s"] for said in ranks.all("aborted")) < 2.0
    assert not run.events("save_failed")
    opened = [(said["tier"], said["step"]) for said in ranks.all("open") if said["rank"] == 0]
    # with two slots the memory tier goes on beside the write; the only one keeps what it holds meanwhile
    assert opened[1:] == [("memory", 8), ("memory", kept)]
    assert run.generations() and all(name.endswith(".3") for name in run.generations())


def test_a_slot_that_one_rank_alone_still_writes_is_not_filled_on_any(run: Any) -> None:
    """The other's writer has let go at once: rank 0 must know of both, or the ranks' saves come apart."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", rank=1, delay_s=3.0, saves=1))
    ranks = run.run(
        ["start"], ["train", 4], ["sleep", 0.5], ["abort"], ["start"], ["train", 25], ["finish"],
        config={"persist_every": 4, "host_slots": 1, "overlap": "skip"}, step_s=0.1,
    )  # fmt: skip
    assert ranks.codes == [0, 0] and ranks.one("finished", "committed") is True
    assert not run.events("save_failed")
    skipped = [event for event in run.events("save_skipped") if event["attempt"] == 2]
    assert any("step-00000004.1" in event["reason"] for event in skipped)
