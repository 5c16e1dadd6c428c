"""What a job that gives up says of its last error."""

from __future__ import annotations

import time
from typing import Any

import pytest

from trainer.events import Event, Ledger
from trainer.launcher_log import event_in
from trainer.paths import RunPaths
from trainer.resilience.cause import last_error

pytestmark = pytest.mark.unit


def interrupted(
    paths: RunPaths,
    rank: int,
    attempt: int | None,
    step: int,
    detail: str,
    *,
    submission: int = 1,
    start: str | None = None,
) -> None:
    ledger = Ledger(paths.events, f"rank-{rank}-{attempt}", pod=f"p{rank}", rank=rank, submission=submission)
    ledger.bind(attempt=attempt)
    ledger.write(Event.INTERRUPTED, layer="in_process", detail=detail, step=step, start=start)
    ledger.close()
    time.sleep(0.002)


def test_the_cause_is_named_and_not_what_followed_from_it(paths: RunPaths) -> None:
    interrupted(paths, 1, 1, 9, "OSError: an older one")
    interrupted(paths, 0, 2, 15, "InjectedError: the cause")
    interrupted(paths, 1, 2, 15, "RankShouldRestart: told")
    assert last_error(paths, 1) == "step 15, rank 0: InjectedError: the cause"


def test_before_an_attempt_was_opened_the_newest_start_counts(paths: RunPaths) -> None:
    interrupted(paths, 0, None, 1, "OSError: first start", start="a/0")
    interrupted(paths, 1, None, 1, "OSError: second start", start="a/1")
    interrupted(paths, 0, None, 1, "RuntimeError: what followed from it", start="a/1")
    assert last_error(paths, 1) == "step 1, rank 1: OSError: second start"


def test_a_run_without_errors_says_so(paths: RunPaths) -> None:
    assert "none was written" in last_error(paths, 1)


def test_an_error_of_an_earlier_submission_is_not_this_ones(paths: RunPaths) -> None:
    interrupted(paths, 0, 1, 5, "OSError: of the submission before")
    assert "none was written" in last_error(paths, 2)
    interrupted(paths, 1, 2, 7, "OSError: now", submission=2)
    assert last_error(paths, 2) == "step 7, rank 1: OSError: now"


def write(paths: RunPaths, event: Event, pod: int, **fields: Any) -> None:
    """A record of a pod; of its rank if `rank` is among the fields."""
    ledger = Ledger(paths.events, f"of-{pod}-{event}-{fields.get('rank')}", pod=f"p{pod}", submission=1)
    ledger.write(event, **fields)
    ledger.close()
    time.sleep(0.002)


def killed(paths: RunPaths, pod: int, local_rank: int) -> None:
    """What ft_launcher's log says of a rank that was sent SIGKILL."""
    line = (
        "E1130 08:02:04.357000 5789 /torch/distributed/elastic/multiprocessing/api.py:1002] failed "
        f"(exitcode: -9) local_rank: {local_rank} (pid: 6860) of binary: /usr/bin/python\n"
    )
    found = event_in(line)
    assert found is not None
    write(paths, found[0], pod, **found[1])


def began(paths: RunPaths, rank: int, *, pod: int, local_rank: int) -> None:
    write(paths, Event.PROCESS_STARTED, pod, rank=rank, local_rank=local_rank)


def test_a_killed_rank_is_named_though_only_its_peer_wrote_an_error(paths: RunPaths) -> None:
    for rank in range(4):
        began(paths, rank, pod=rank // 2, local_rank=rank % 2)
    write(paths, Event.STEP, 1, rank=3, step=25)
    write(paths, Event.STEP, 1, rank=2, step=26)
    interrupted(paths, 0, 1, 26, "RuntimeError: Connection closed by peer")
    killed(paths, 1, 1)
    assert last_error(paths, 1) == "step 26, rank 3: killed by SIGKILL"


def test_a_rank_that_was_killed_earlier_is_not_the_cause_of_a_later_error(paths: RunPaths) -> None:
    began(paths, 0, pod=0, local_rank=0)
    killed(paths, 0, 0)
    began(paths, 0, pod=0, local_rank=0)
    interrupted(paths, 0, 2, 9, "OSError: another matter")
    assert last_error(paths, 1) == "step 9, rank 0: OSError: another matter"


@pytest.mark.parametrize(
    ("rank", "detail", "named"),
    [
        (1, "RuntimeError: element 0 of tensors does not require grad", "rank 1: RuntimeError"),
        (0, "InjectedError: the cause", "rank 0: InjectedError"),
        (0, "RuntimeError: Connection closed by peer", "rank 1: killed by SIGKILL"),
        (0, "RankShouldRestart: Interruption.SOFT_TIMEOUT", "rank 1: killed by SIGKILL"),
    ],
)
def test_a_rank_that_is_ended_after_an_error_is_not_its_cause(
    paths: RunPaths, rank: int, detail: str, named: str
) -> None:
    """NVRx and ft_launcher end with SIGKILL what does not come back from somebody's error."""
    for number in range(2):
        began(paths, number, pod=number, local_rank=0)
    interrupted(paths, rank, 1, 7, detail)
    killed(paths, 1, 0)
    assert named in last_error(paths, 1)


def test_the_first_of_two_killed_at_once_is_named(paths: RunPaths) -> None:
    for start in range(2):
        for rank in range(2):
            began(paths, rank, pod=rank, local_rank=0)
            write(paths, Event.RESTORED, rank, rank=rank, step=10)
        killed(paths, 1 - start, 0)
        killed(paths, start, 0)
    assert last_error(paths, 1) == "step 11, rank 0: killed by SIGKILL"


def test_a_rank_that_never_wrote_anything_is_known_by_its_pod(paths: RunPaths) -> None:
    killed(paths, 0, 0)
    assert "pod p0 was killed by SIGKILL" in last_error(paths, 1)


def test_a_signal_without_a_name_has_its_number(paths: RunPaths) -> None:
    began(paths, 0, pod=0, local_rank=0)
    write(paths, Event.RANK_KILLED, 0, local_rank=0, signal=40)
    assert last_error(paths, 1) == "step 1, rank 0: killed by signal 40"


def test_a_rank_that_ends_with_an_error_of_its_own_is_no_killed_one() -> None:
    line = "E1130 08:02:04.3 57 /torch/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 6) of binary: python"
    assert event_in(line) is None
