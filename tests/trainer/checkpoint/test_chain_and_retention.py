"""Which generations count, which is newest, and which may go: attempts and commits on disk, without data."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.chain import candidates, read_chain, take_attempt
from trainer.checkpoint.records import Attempt, Commit, FileRecord, seal
from trainer.checkpoint.retention import sweep, thin, to_delete
from trainer.paths import RunPaths

pytestmark = pytest.mark.unit


def commit(name: str, step: int, attempt: int, origin: str | None) -> Commit:
    return Commit(
        generation=name,
        step=step,
        attempt=attempt,
        origin=origin,
        world_size=1,
        files={"__0_0.distcp": FileRecord("l", [0, 0, 0], [])},
        metadata=FileRecord("", [0, 0], []),
        writer="steadfast",
        wall_s=0.0,
    )


class Starts:
    """Attempts and commits on disk, without data."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.make()

    def attempt(self, origin: str | None) -> int:
        return take_attempt(self.paths, Attempt(0, origin, "storage", 0, 1, 0.0)).attempt

    def commit(self, name: str, origin: str | None = None) -> None:
        step, attempt = name[5:].split(".")
        directory = self.paths.checkpoints / name
        directory.mkdir()
        (directory / "__0_0.distcp").touch()
        record = commit(name, int(step), int(attempt), origin)
        (directory / "commit.json").write_bytes(seal(record))


@pytest.fixture
def starts(tmp_path: Path) -> Starts:
    return Starts(tmp_path)


def test_roll_back_abandons_the_future(starts: Starts) -> None:
    """Attempt 1 saves 80 and 100, a NaN sends the run back to 80, attempt 2 saves 90: newest is 90, not 100."""
    starts.attempt(None)
    starts.commit("step-00000080.1")
    starts.commit("step-00000100.1")
    starts.attempt("step-00000080.1")
    starts.commit("step-00000090.2")
    assert [p.name for p in candidates(starts.paths)] == ["step-00000090.2", "step-00000080.1"]


def test_attempt_that_started_from_nothing_abandons_everything(starts: Starts) -> None:
    starts.attempt(None)
    starts.commit("step-00000080.1")
    starts.attempt(None)
    assert candidates(starts.paths) == []


def test_torn_attempt_record_never_took_a_step(starts: Starts) -> None:
    starts.attempt(None)
    starts.commit("step-00000080.1")
    (starts.paths.attempts / "2.json").touch()
    assert [p.name for p in candidates(starts.paths)] == ["step-00000080.1"]
    assert read_chain(starts.paths).newest == 2, "its number is taken all the same"
    assert starts.attempt("step-00000080.1") == 3


def test_chain_survives_a_lost_attempt_record(starts: Starts) -> None:
    starts.attempt(None)
    starts.commit("step-00000010.1")
    starts.attempt("step-00000010.1")
    starts.commit("step-00000020.2", origin="step-00000010.1")
    (starts.paths.attempts / "2.json").write_bytes(b"rotten")
    assert [p.name for p in candidates(starts.paths)] == ["step-00000020.2", "step-00000010.1"]


def test_names_are_no_truth(starts: Starts) -> None:
    """KempnerForge#177, speculators PR#739: an empty directory, and one that no attempt owns."""
    starts.attempt(None)
    starts.commit("step-00000005.1")
    (starts.paths.checkpoints / "step-00000010.1").mkdir()
    starts.commit("step-00000099.7")
    assert [p.name for p in candidates(starts.paths)] == ["step-00000005.1"]


def rolled_back(starts: Starts) -> None:
    """10, 20, 30; then a second attempt from 10 saves 15."""
    starts.attempt(None)
    for step in (10, 20, 30):
        starts.commit(f"step-{step:08}.1")
    starts.attempt("step-00000010.1")
    starts.commit("step-00000015.2")


def test_what_is_abandoned_neither_counts_nor_pushes_good_ones_out(starts: Starts) -> None:
    rolled_back(starts)
    assert [position.name for position in to_delete(starts.paths, 2, 0)] == ["step-00000020.1", "step-00000030.1"]


def test_nothing_goes_before_the_chain_has_enough(starts: Starts) -> None:
    """An abandoned future is the last resort of someone who rolled back by mistake."""
    rolled_back(starts)
    assert to_delete(starts.paths, 3, 0) == []


def test_the_janitor_leaves_what_the_living_attempt_owns(starts: Starts) -> None:
    starts.attempt(None)
    (starts.paths.checkpoints / "step-00000010.1").mkdir()
    assert sweep(starts.paths) == []
    starts.attempt(None)
    assert sweep(starts.paths) == ["step-00000010.1"]


@given(
    times=st.lists(st.floats(0, 1e6), min_size=1, max_size=12, unique=True).map(sorted), count=st.integers(0, 12)
)
def test_thinning_keeps_the_oldest_and_the_right_number(times: list[float], count: int) -> None:
    kept = thin(times, count)
    assert len(kept) == min(count, len(times))
    assert kept == sorted(set(kept))
    if count:
        assert kept[0] == 0


def test_repeated_thinning_spreads_over_time() -> None:
    """One generation an hour for a year, eight kept: they span the year."""
    kept: list[float] = []
    for hour in range(24 * 365):
        kept.append(float(hour))
        kept = [kept[i] for i in thin(kept, 8)]
    assert kept[0] == 0 and max(b - a for a, b in itertools.pairwise(kept)) < 24 * 365 / 2
