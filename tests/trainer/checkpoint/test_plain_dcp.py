"""What plain torch 2.13 DCP does where ours must do better: if one of these fails, torch has changed.

Each hazard's counterpart on ours is named in its docstring.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import pytest

pytestmark = pytest.mark.integration

PEER_TIMEOUT_S = 3.0
ALONE = ("stale", "ghost", "overlap", "sigterm", "SIGSTOP", "SIGKILL")


@pytest.fixture(scope="module")
def launched(module_run: Any) -> dict[str, Any]:
    """All at once: most of them wait most of the time."""
    timeouts = {"SIGSTOP": PEER_TIMEOUT_S, "SIGKILL": 60.0}
    return {
        name: module_run.launch(plain=name, timeout_s=timeouts.get(name, 60.0))
        for name in ("in one process", *ALONE)
    }


@pytest.fixture(scope="module")
def said(launched: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of the hazards that leave their process whole, by rank 0."""
    ranks = launched["in one process"].wait()
    assert ranks.codes == [0, 0]
    return {said["what"]: said for said in ranks.heard if said["rank"] == 0}


def test_overwriting_in_place_mixes_two_checkpoints(said: dict[str, dict[str, Any]]) -> None:
    """e1b; ours: test_a_generation_is_never_written_twice, test_writer_killed_at_every_point."""
    assert said["torn"] == {"rank": 0, "what": "torn", "error": "no error", "loaded": [2.0, 2.0, 1.0, 1.0]}


def test_a_flipped_byte_is_loaded(said: dict[str, dict[str, Any]]) -> None:
    """e2; ours: test_any_damage_sends_all_ranks_to_the_previous_generation."""
    assert (said["flip"]["error"], said["flip"]["wrong"]) == ("no error", 1)


def test_per_rank_values_under_one_name_are_lost(said: dict[str, dict[str, Any]]) -> None:
    """e3, Megatron-LM PR#6858; ours: test_killed_run_goes_on_bit_for_bit_from_memory_and_from_storage."""
    assert len(set(said["per_rank"]["loaded"])) == 1


def test_a_snapshot_is_not_changed_afterwards(said: dict[str, dict[str, Any]]) -> None:
    """e4, repaired by pytorch#144657: a regression test."""
    assert said["mutate"]["loaded"] == [1.0]


def test_a_failed_asynchronous_save_says_nothing(said: dict[str, dict[str, Any]]) -> None:
    """e10; ours: test_save_that_fails_on_one_rank_is_counted_and_ends_the_run_after_its_policy."""
    assert said["silent"]["held"] and not said["silent"]["marker"]


def test_extra_keys_are_ignored_and_dtypes_cast(said: dict[str, dict[str, Any]]) -> None:
    """e12; ours: test_strict_both_ways_names_every_key."""
    assert (said["keys"]["extra"], said["keys"]["cast"], said["keys"]["value"]) == ("no error", "no error", 1.5)


def test_the_highest_step_is_an_abandoned_future(said: dict[str, dict[str, Any]]) -> None:
    """Ours: test_roll_back_abandons_the_future."""
    assert said["newest"]["newest"] == 100


def test_a_save_after_a_restart_raises(launched: dict[str, Any]) -> None:
    """e5; ours: test_fifty_saves_and_ten_restarts_leave_nothing_behind."""
    said = next(said for said in launched["stale"].wait().all("stale") if said["rank"] == 0)
    assert said["committed"] == [True, False] and said["error"] != "no error"


def test_a_save_appears_after_its_trainers_have_died(launched: dict[str, Any], module_run: Any) -> None:
    """e6, e11; ours: test_killed_in_the_middle_of_a_save, test_ghost_of_an_older_attempt_commits_nothing."""
    ranks = launched["ghost"].wait()
    assert ranks.codes == [-signal.SIGKILL] * 2 and not any(said["committed"] for said in ranks.all("ghost"))
    marker, end = module_run.paths.root / "ghost" / ".metadata", time.monotonic() + 60
    while not marker.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert marker.exists()


def test_saves_pile_up_in_memory_and_never_end(launched: dict[str, Any]) -> None:
    """e7; ours: test_saves_in_a_row_wait_for_a_slot_and_all_commit."""
    said = next(said for said in launched["overlap"].wait().all("overlap") if said["rank"] == 0)
    assert said["grown_mib"] >= 4 * 32 - 8 and said["committed"] < 4


@pytest.mark.parametrize(("name", "at_least_s"), [("SIGSTOP", PEER_TIMEOUT_S), ("SIGKILL", 0.0)])
def test_a_peer_that_is_gone_is_noticed(launched: dict[str, Any], name: str, at_least_s: float) -> None:
    """e14, a regression test; ours: test_a_rank_that_does_not_come_is_named."""
    launched[name].until("peer", count=2)
    with contextlib.suppress(ProcessLookupError):
        os.kill(launched[name].pids[1], signal.SIGKILL)
    said = next(said for said in launched[name].wait().all("peer") if said["rank"] == 0)
    assert said["error"] != "no error" and at_least_s - 0.6 <= said["took_s"] < at_least_s + 1


def test_a_planned_stop_kills_the_loader_before_the_save(launched: dict[str, Any]) -> None:
    """e15; ours: test_planned_stop_with_loader_workers_during_evaluation."""
    launched["sigterm"].until("sigterm", count=2)
    for pid in launched["sigterm"].pids:
        os.killpg(pid, signal.SIGTERM)
    ends = [said for said in launched["sigterm"].wait().all("sigterm") if "error" in said]
    assert len(ends) == 2 and not any(said["saved"] for said in ends)
    assert any("DataLoader worker" in said["error"] for said in ends)
