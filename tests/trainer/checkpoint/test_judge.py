"""What rank 0 decides, case by case, whatever runs beside it; test_save_restore.py has real writers beside it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint.decisions import Action
from trainer.checkpoint.judge import Busy, Judge
from trainer.config import CheckpointConfig
from trainer.events import Event, Ledger, read_ledger

pytestmark = pytest.mark.unit

WRITING = Busy("step-00000010.1 is still being written")
HASHING = Busy("the snapshot of step 8 is not whole on all ranks yet", passing=True)


@dataclass
class Situation:
    """What the judge asks for."""

    to_storage: Busy | None = None
    into_memory: Busy | None = None
    failures: int = 0
    stop: str | None = None
    saving: bool = False

    def under_way(self) -> bool:
        return True

    def persisting(self) -> bool:
        return self.saving

    def stop_seen(self) -> str | None:
        return self.stop

    def busy(self, *, persist: bool, pending: int | None) -> Busy | None:
        if pending is not None:
            return Busy(f"pending {pending}", passing=True)
        return self.to_storage if persist else self.into_memory

    def stage(self) -> str:
        return "host"

    def failures_in_a_row(self) -> int:
        return self.failures

    def persist_s(self) -> float | None:
        return None


class Court:
    """A judge, the situation, and what it wrote down."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.now, self.folder = Situation(), folder
        self._judge = Judge(
            CheckpointConfig(**config), self.now, Ledger(folder, source="rank-00000", pod="pod"), restored_step=0
        )

    def action(self, step: int) -> Action:
        """After `step`."""
        return self._judge.judge(step).action

    def reason(self, step: int) -> str:
        """The same decision's words."""
        return self._judge.judge(step).reason

    @property
    def skipped(self) -> list[tuple[int, str]]:
        """Step and kind of every save that was left out."""
        records = [record for record in read_ledger(self.folder) if record["event"] == Event.SAVE_SKIPPED]
        return [(record["step"], record["kind"]) for record in records]


def test_a_persist_goes_before_a_snapshot(tmp_path: Path) -> None:
    court = Court(tmp_path, persist_every=10, snapshot_every=5)
    assert [court.action(step) for step in (4, 5, 10, 15)] == [
        Action.NONE, Action.SNAPSHOT, Action.PERSIST, Action.SNAPSHOT
    ]  # fmt: skip
    assert court.skipped == []


@pytest.mark.parametrize("snapshot_every", [None, 5])
def test_what_storage_cannot_take_is_kept_in_memory(tmp_path: Path, snapshot_every: int | None) -> None:
    court = Court(tmp_path, persist_every=10, snapshot_every=snapshot_every)
    court.now.to_storage = WRITING
    decision = court.reason(20)
    assert decision == f"into memory only: {WRITING.reason}"
    assert court.skipped == [(20, "persist")]
    court.now.to_storage = None
    assert court.action(21) is Action.NONE, "skipped, not put off"
    assert court.action(30) is Action.PERSIST


def test_nothing_fits_into_memory_either(tmp_path: Path) -> None:
    court = Court(tmp_path, persist_every=10)
    court.now.to_storage = court.now.into_memory = WRITING
    assert court.action(20) is Action.SKIP
    assert court.skipped == [(20, "persist"), (20, "snapshot")]


def test_a_snapshot_on_its_way_puts_a_persist_off_and_does_not_take_its_place(tmp_path: Path) -> None:
    """Otherwise snapshots that are frequent enough keep a run from ever reaching storage."""
    court = Court(tmp_path, persist_every=10, snapshot_every=2)
    court.now.to_storage = court.now.into_memory = HASHING
    assert [court.action(step) for step in (10, 11, 12)] == [Action.NONE] * 3
    court.now.to_storage = court.now.into_memory = None
    assert court.reason(13) == "every 10 steps, put off"
    assert [court.action(step) for step in (15, 16, 20)] == [Action.NONE, Action.SNAPSHOT, Action.PERSIST]
    assert court.skipped == []


def test_two_neighbouring_saves_would_leave_nothing_that_is_whole(tmp_path: Path) -> None:
    """The decision about a step falls before the save of the step before begins."""
    court = Court(tmp_path, persist_every=10, snapshot_every=3)
    assert [court.action(step) for step in (9, 10, 11)] == [Action.SNAPSHOT, Action.NONE, Action.PERSIST]
    assert [court.action(step) for step in (12, 15)] == [Action.SKIP, Action.SNAPSHOT]
    assert court.skipped == [(12, "snapshot")]


def test_what_is_due_by_the_clock_stays_due(tmp_path: Path) -> None:
    court = Court(tmp_path, persist_every="0.001s", snapshot_every=5)
    time.sleep(0.01)
    court.now.to_storage = WRITING
    assert [court.action(step) for step in (1, 5, 6)] == [Action.NONE, Action.SNAPSHOT, Action.NONE]
    court.now.to_storage = None
    assert court.action(7) is Action.PERSIST
    assert court.skipped == []


def test_auto_waits_for_its_first_save_before_it_asks_for_another(tmp_path: Path) -> None:
    """Under `wait` storage is never busy: every 20 steps one more would stand in line, and training with it."""
    court = Court(tmp_path, persist_every="auto", overlap="wait")
    assert court.action(20) is Action.PERSIST
    court.now.saving = True
    assert [court.action(step) for step in (40, 60, 80)] == [Action.NONE] * 3
    court.now.saving = False
    assert court.action(81) is Action.PERSIST, "it is over and nothing came of it"


def test_snapshots_that_are_always_under_way_do_not_keep_auto_from_storage(tmp_path: Path) -> None:
    court = Court(tmp_path, persist_every="auto", snapshot_every=1, overlap="wait")
    assert [court.action(step) for step in (18, 20)] == [Action.SNAPSHOT, Action.PERSIST]
    court.now.saving = True
    assert court.action(40) is Action.SNAPSHOT
    court.now.saving = False
    assert court.action(42) is Action.PERSIST


def test_a_snapshot_that_is_not_whole_is_waited_for(tmp_path: Path) -> None:
    """The other slot holds the last whole one."""
    court = Court(tmp_path, persist_every=100, snapshot_every=2)
    court.now.into_memory = HASHING
    assert court.action(2) is Action.SKIP
    assert court.skipped == [(2, "snapshot")]


def test_a_stop_and_failing_saves_come_first(tmp_path: Path) -> None:
    court = Court(tmp_path, persist_every=10, tolerate_failures=1)
    court.now.failures = 1
    assert court.action(10) is Action.PERSIST
    court.now.stop = "SIGTERM"
    assert [court.action(step) for step in (20, 30)] == [Action.STOP, Action.NONE], "once"
    court.now.failures = 2
    assert court.action(40) is Action.FAIL
