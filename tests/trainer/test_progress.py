"""What a job that gives up says of its last error."""

from __future__ import annotations

import time

import pytest

from trainer.events import Event, Ledger
from trainer.paths import RunPaths
from trainer.resilience.progress import last_error

pytestmark = pytest.mark.unit


def interrupted(paths: RunPaths, rank: int, attempt: int | None, step: int, detail: str) -> None:
    ledger = Ledger(paths.events, f"rank-{rank}-{attempt}", pod=f"p{rank}", rank=rank)
    ledger.bind(attempt=attempt)
    ledger.write(Event.INTERRUPTED, layer="in_process", detail=detail, step=step)
    ledger.close()
    time.sleep(0.002)


def test_the_cause_is_named_and_not_what_followed_from_it(paths: RunPaths) -> None:
    interrupted(paths, 1, 1, 9, "OSError: an older one")
    interrupted(paths, 0, 2, 15, "InjectedError: the cause")
    interrupted(paths, 1, 2, 15, "RankShouldRestart: told")
    assert last_error(paths) == "step 15, rank 0: InjectedError: the cause"


def test_before_an_attempt_was_opened_the_newest_counts(paths: RunPaths) -> None:
    interrupted(paths, 0, None, 1, "OSError: first start")
    interrupted(paths, 1, None, 1, "OSError: second start")
    assert last_error(paths) == "step 1, rank 1: OSError: second start"


def test_a_run_without_errors_says_so(paths: RunPaths) -> None:
    assert "none was written" in last_error(paths)
