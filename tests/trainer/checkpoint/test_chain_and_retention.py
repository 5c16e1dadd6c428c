"""Which generations count, which is newest, and which may go: attempts and commits on disk, without data."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.checkpoint.chain import Position, candidates, read_chain, take_attempt
from trainer.checkpoint.records import Attempt, Commit, FileRecord, load, seal
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

    def lose(self, number: int) -> None:
        """The record of an attempt is torn long after it was written."""
        path = self.paths.attempts / f"{number}.json"
        path.write_bytes(path.read_bytes()[:20])

    def forget_ancestors(self, number: int) -> None:
        """As a record was written before it had them."""
        path = self.paths.attempts / f"{number}.json"
        path.write_bytes(seal(Attempt(**{**vars(load(Attempt, path)), "ancestors": []})))

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


def handed_on(starts: Starts) -> None:
    """1 commits 4 and 8; 2 goes on from 4 and 3 from 2's step 6, out of memory alone; 3 commits 9 and 10."""
    starts.attempt(None)
    starts.commit("step-00000004.1")
    starts.commit("step-00000008.1")
    starts.attempt("step-00000004.1")
    starts.attempt("step-00000006.2")
    starts.commit("step-00000009.3", origin="step-00000006.2")
    starts.commit("step-00000010.3", origin="step-00000006.2")


ON_CHAIN = ["step-00000010.3", "step-00000009.3", "step-00000004.1"]


@pytest.mark.parametrize("lost", [(), (1,), (2,), (1, 2)])
def test_a_lost_record_of_an_attempt_that_committed_nothing_cuts_nothing_off(
    starts: Starts, lost: tuple[int, ...]
) -> None:
    """What it was handed and handed on through memory stands in the records of those after it."""
    handed_on(starts)
    for number in lost:
        starts.lose(number)
    assert [p.name for p in candidates(starts.paths)] == ON_CHAIN
    assert [p.name for p in to_delete(starts.paths, 2, 1)] == ["step-00000008.1"]
    starts.attempt("step-00000010.3")
    starts.lose(3)
    assert [p.name for p in candidates(starts.paths)] == ON_CHAIN, "nor for those who start later"


def test_records_without_ancestors_are_walked(starts: Starts) -> None:
    """Those of a run that began before attempts recorded them."""
    handed_on(starts)
    for number in (2, 3):
        starts.forget_ancestors(number)
    assert [p.name for p in candidates(starts.paths)] == ON_CHAIN
    starts.attempt("step-00000010.3")
    assert load(Attempt, starts.paths.attempts / "4.json").ancestors == ["step-00000006.2", "step-00000004.1"]


def test_what_lies_behind_a_lost_record_is_not_called_abandoned(starts: Starts) -> None:
    """The newest record is lost, and that of the attempt that its commits name: nobody knows what is behind."""
    handed_on(starts)
    starts.lose(2)
    starts.lose(3)
    assert [p.name for p in candidates(starts.paths)] == ON_CHAIN[:2]
    assert to_delete(starts.paths, 2, 0) == []


def test_a_foreign_commit_does_not_say_where_an_attempt_started(starts: Starts) -> None:
    handed_on(starts)
    starts.lose(3)
    foreign = (starts.paths.checkpoints / "step-00000004.1" / "commit.json").read_bytes()
    for name in ON_CHAIN[:2]:
        (starts.paths.checkpoints / name / "commit.json").write_bytes(foreign)
    assert [p.name for p in candidates(starts.paths)] == ["step-00000004.1"]


act = st.sampled_from(["commit", "hand on", "roll back", "restart", "from nothing"])


def play(starts: Starts, acts: list[str]) -> None:
    """A run of attempts in which states go on through storage, through memory alone, or not at all."""
    number, origin, step = starts.attempt(None), None, 0
    for what in acts:
        step += 1
        if what == "commit":
            starts.commit(Position(number, step).name, origin)
            continue
        found = candidates(starts.paths)
        start: Position | None = found[0] if found else None
        if what == "hand on":
            start = Position(number, step)
        elif what == "roll back":
            start = found[1] if len(found) > 1 else start
        elif what == "from nothing":
            start = None
        origin, step = (start.name, start.step) if start else (None, 0)
        number = starts.attempt(origin)


@settings(deadline=None)
@given(acts=st.lists(act, max_size=15), keep_spaced=st.integers(0, 2), remove=st.booleans(), data=st.data())
def test_no_record_but_the_newest_is_needed(
    acts: list[str], keep_spaced: int, remove: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="chain-") as root:
        starts = Starts(Path(root))
        play(starts, acts)
        chain, found = read_chain(starts.paths), candidates(starts.paths)
        doomed = to_delete(starts.paths, 2, keep_spaced)
        older = list(range(1, chain.newest))
        committed_something = any(position.attempt == chain.newest for position in found)
        numbers = older + ([chain.newest] if committed_something else [])
        if not numbers:
            return
        lost = data.draw(st.sampled_from(numbers))
        if remove and lost != chain.newest:
            (starts.paths.attempts / f"{lost}.json").unlink()
        else:
            starts.lose(lost)
        assert read_chain(starts.paths).limits == chain.limits
        assert candidates(starts.paths) == found
        assert set(to_delete(starts.paths, 2, keep_spaced)) <= set(doomed)


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
