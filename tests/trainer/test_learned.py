"""Step times that are measured, kept and turned into timeouts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from trainer.config import RecoveryConfig
from trainer.paths import RunPaths
from trainer.resilience.learned import WINDOW_STEPS, StepTimes, learned_step_s, table

pytestmark = pytest.mark.unit


def measure(paths: RunPaths, *seconds: float) -> None:
    times = StepTimes(paths)
    for value in seconds:
        times.add(value)


def test_a_full_window_is_kept_and_read_again(paths: RunPaths) -> None:
    assert learned_step_s(paths) is None
    measure(paths, *[4.0] * (WINDOW_STEPS - 1))
    assert learned_step_s(paths) is None
    measure(paths, 60.0, *[4.0] * (WINDOW_STEPS - 1))
    assert learned_step_s(paths) == 4.0, "the slow first step must not count"


def test_small_changes_cost_no_write(paths: RunPaths) -> None:
    measure(paths, *[4.0] * WINDOW_STEPS, *[4.9] * WINDOW_STEPS)
    assert learned_step_s(paths) == 4.0
    measure(paths, *[5.1] * WINDOW_STEPS)
    assert learned_step_s(paths) == 5.1


def test_a_directory_that_cannot_be_written_ends_no_training(tmp_path: Path) -> None:
    measure(RunPaths(tmp_path / "missing"), *[1.0] * WINDOW_STEPS)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step_s": null}', '{"step_s": -1}', '{"step_s": 1e999}'])
def test_nonsense_is_not_learned(paths: RunPaths, text: str) -> None:
    paths.learned.write_text(text)
    assert learned_step_s(paths) is None


def test_long_steps_have_long_timeouts_in_the_same_order() -> None:
    derived = partial(RecoveryConfig(termination_grace_s=2000).timeouts, "cuda")
    timeouts = table(derived, 10.0)
    assert timeouts.collective_s == 200.0 and timeouts.heartbeat_s == 800.0
    assert not timeouts.contradictions()
    assert table(derived, 0.5) == table(derived, None), "never below the floor"


def test_a_table_that_contradicts_itself_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    derived = partial(RecoveryConfig().timeouts, "cuda")
    assert table(derived, 10.0) == derived(None)
    assert "recovery.termination_grace_s" in caplog.text


def test_what_the_user_sets_is_not_overruled() -> None:
    derived = partial(RecoveryConfig(collective_timeout_s=65, heartbeat_timeout_s=250).timeouts, "cuda")
    assert table(derived, 10.0) == derived(None)
