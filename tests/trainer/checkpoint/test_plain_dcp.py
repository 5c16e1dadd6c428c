"""What plain torch 2.13 DCP does where ours must do better: if one of these fails, torch has changed.

Each hazard's counterpart on ours is named in its docstring.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def said(module_run: Any) -> dict[str, dict[str, Any]]:
    """One launch for all."""
    ranks = module_run.run(plain=True)
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
