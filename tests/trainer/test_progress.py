"""When a job gives up."""

from __future__ import annotations

import os

import pytest
from nvidia_resiliency_ext.fault_tolerance.progress_tracker import TrainingProgressTracker

from trainer.events import Event, Ledger
from trainer.paths import RunPaths
from trainer.resilience.progress import Starts, completed_step, recorded_loss, restored, saved_step, tell_launcher

pytestmark = pytest.mark.unit


def test_attempts_that_began_at_the_same_step_are_counted(paths: RunPaths) -> None:
    starts = Starts(paths, 1)
    for attempt, step in ((1, 0), (2, 10), (3, 20), (4, 20)):
        starts.opened(attempt, step)
    assert starts.attempts_in_a_row(10, 20) == 3
    assert starts.attempts_in_a_row(4, 20) == 2, "its own note is there already, or not yet"
    assert starts.attempts_in_a_row(10, 30) == 1


def test_slow_storage_does_not_keep_who_tells_ft_launcher(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that does also brings the decisions to the other ranks."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    tell_launcher(paths, 7)
    assert saved_step(paths) == 7 and not synced


def test_a_resumed_run_has_every_try_again(paths: RunPaths) -> None:
    for attempt in (1, 2, 3):
        Starts(paths, 1).opened(attempt, 20)
    assert Starts(paths, 2).attempts_in_a_row(4, 20) == 1


def test_processes_that_open_no_attempt_are_counted(paths: RunPaths) -> None:
    starts = Starts(paths, 1)
    for _ in range(3):
        starts.begun()
        starts.opened(1, 0)
    assert starts.begun_in_a_row() == 0
    starts.begun()
    starts.begun()
    assert starts.begun_in_a_row() == 2 and Starts(paths, 2).begun_in_a_row() == 0
    assert starts.attempts_in_a_row(2, 0) == 4


def test_torn_records_of_starts_and_attempts_are_passed_over(paths: RunPaths) -> None:
    (paths.attempts / "1.json").write_text("")
    starts = Starts(paths, 1)
    starts.opened(2, 20)
    with paths.starts(1).open("a") as file:
        file.write('{"opened": 3, "st\n[]\n{"opened"')
    assert starts.attempts_in_a_row(4, 20) == 2
    paths.starts(1).unlink()
    paths.starts(1).mkdir()  # nothing can be noted or read
    starts.opened(5, 20)
    assert starts.attempts_in_a_row(6, 20) == 1


@pytest.mark.parametrize("text", ["[]", "{}", "null", "{", '{"step": null}', '{"step": "x"}'])
def test_a_completion_record_that_says_nothing_completes_nothing(paths: RunPaths, text: str) -> None:
    paths.completion.write_text(text)
    assert completed_step(paths) is None


def test_ft_launcher_is_told_of_steps_that_memory_restored(paths: RunPaths) -> None:
    """NVRx's own rule, where commits to storage are rarer than faults and every start gets further."""
    paths.progress.write_text("60")
    tracker = TrainingProgressTracker(max_no_progress_cycles=2, checkpoint_iteration_file=str(paths.progress))
    for step in (68, 74, 80, 86):
        restored(paths, step)
        tracker.analyze_previous_cycle()
        assert not tracker.should_terminate_early(), step
    restored(paths, 60)
    assert paths.progress.read_text() == "86"
    for _ in range(2):
        restored(paths, 86)
        tracker.analyze_previous_cycle()
    assert tracker.should_terminate_early()


def test_the_loss_of_a_step_is_that_of_the_attempt_that_did_it_last(paths: RunPaths) -> None:
    for attempt, rank, step, loss in (
        (1, 0, 36, 9.0),
        (1, 1, 36, 9.0),
        (2, 0, 36, 4.0),
        (2, 1, 36, 5.0),
        (2, 0, 35, 7.0),
    ):
        ledger = Ledger(paths.events, f"rank-{rank}-{attempt}-{step}", pod="p", rank=rank)
        ledger.write(Event.STEP, step=step, loss=loss)
        ledger.close()
    assert recorded_loss(paths, 36, 2) == 4.5
    assert recorded_loss(paths, 35, 2) is None, "one rank alone has written it"
    assert recorded_loss(paths, 37, 2) is None
