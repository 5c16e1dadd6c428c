"""The protocol alone, without torch: writers as processes that die, stop and fail at every point of it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from two_writers import COMMITTING, CUTS, PROTOCOL, World, assert_whole, fork, started, wait_until

from trainer.checkpoint import faults, writer
from trainer.checkpoint.chain import Position, candidates, committed, newest_attempt
from trainer.checkpoint.faults import StorageFault
from trainer.checkpoint.records import COMMIT, METADATA, Commit, ack_name, load
from trainer.checkpoint.reports import Phase, poll
from trainer.checkpoint.retention import prune
from trainer.checkpoint.verify import verify_generation
from trainer.checkpoint.writer import Request

pytestmark = pytest.mark.integration


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield World(tmp_path)


def test_a_save_is_committed_and_whole(world: World) -> None:
    outcomes = world.save(10)
    assert all(outcome and outcome.ok for outcome in outcomes), outcomes
    assert world.newest == Position(1, 10)
    assert_whole(world)
    record = load(Commit, world.paths.checkpoints / "step-00000010.1" / COMMIT)
    assert record.bytes == 2 * CUTS[-2] + 100


def test_every_point_that_can_be_armed_is_one_at_which_writers_are_killed() -> None:
    """A point that no save reaches would be a fault that never strikes, without a word."""
    assert sorted(faults.POINTS) == sorted(PROTOCOL + COMMITTING)


@pytest.mark.parametrize(
    ("point", "rank"),
    [*itertools.product(PROTOCOL, (0, 1)), *((point, 0) for point in COMMITTING)],
)
def test_writer_killed_at_every_point(world: World, point: str, rank: int) -> None:
    """The newest whole generation stays loadable, and the run goes on under a new attempt.

    Also transformers PR#35580: the highest number was taken with half of its shards.
    """
    world.save(10)
    faults.arm(world.paths, StorageFault("die", point, "kill", rank=rank, from_step=20, saves=1))
    outcomes = world.save(20, timeout_s=1.0)
    committed_now = point in ("committed", "pruned") or (point, rank) == ("acked", 1)
    dies = not (rank == 1 and point in ("mkdir", "made"))
    assert (outcomes[rank] is None) == dies
    assert world.newest == Position(1, 20 if committed_now or not dies else 10)
    assert_whole(world)
    world.begin(world.newest)
    assert world.save(30)[0].ok  # type: ignore[union-attr]
    assert world.newest == Position(2, 30)
    assert_whole(world)
    leftovers = [p for p in world.paths.checkpoints.iterdir() if not (p / COMMIT).exists()]
    assert not leftovers, "the janitor left something"


def test_both_writers_killed(world: World) -> None:
    world.save(10)
    faults.arm(world.paths, StorageFault("die", "written", "kill", from_step=20, saves=1))
    assert world.save(20) == [None, None]
    assert world.newest == Position(1, 10)
    world.begin(world.newest)
    assert not (world.paths.checkpoints / "step-00000020.1").exists()


@pytest.mark.parametrize("action", ["ENOSPC", "EIO"])
@pytest.mark.parametrize(
    ("point", "rank"),
    [("mkdir", 0), *itertools.product(["create", "write", "fsync", "close", "rename"], [0, 1])],
)
def test_failing_call_is_named_and_nothing_is_committed(world: World, point: str, action: str, rank: int) -> None:
    """metaseq#53: a failed write leaves nothing that could be loaded; checked fsync and close are part of it."""
    world.save(10)
    faults.arm(world.paths, StorageFault("full", point, action, rank=rank, from_step=20, saves=1))  # type: ignore[arg-type]
    started = time.monotonic()
    outcomes = world.save(20, timeout_s=2.0 if point == "mkdir" else 20.0)
    assert time.monotonic() - started < 15.0, "nobody waits for one that gave up"
    failed = outcomes[rank]
    assert failed is not None and not failed.ok
    assert ("No space left" if action == "ENOSPC" else "Input/output error") in failed.error
    assert outcomes[0] is not None and not outcomes[0].ok
    assert world.newest == Position(1, 10)
    assert world.save(30)[0].ok  # type: ignore[union-attr]
    assert world.newest == Position(1, 30)
    assert_whole(world)


def test_slow_fsync_delays_the_commit_and_nothing_else(world: World) -> None:
    """llnl/scr#449: fsync took 10 to 31 s on Lustre."""
    faults.arm(world.paths, StorageFault("slow", "fsync", "delay", delay_s=1.5, rank=1, saves=1))
    outcomes = world.save(10)
    assert outcomes[1] is not None and outcomes[1].fsync_s >= 1.5
    assert world.newest == Position(1, 10)


def test_rank_0_names_the_rank_it_misses(world: World) -> None:
    """marin#8534, OLMo-core PR#428: a barrier without timeout and names stopped 704 GPUs for 4.5 hours.

    orbax#392: a fifth of all saves hung.
    """
    outcome = world.save(10, timeout_s=0.5, ranks=(0,))[0]
    assert outcome is not None and "from ranks [1] within 0.5 s" in outcome.error
    assert world.newest is None


def test_ghost_of_an_older_attempt_commits_nothing(world: World) -> None:
    """e6/e11: two orphans published a checkpoint 4 to 6 s after both trainers had died."""
    world.save(10)
    faults.arm(world.paths, StorageFault("late", "described", "delay", delay_s=3.0, rank=0, from_step=20, saves=1))
    ghosts = started(world.requests(20))
    wait_until((world.paths.checkpoints / "step-00000020.1" / METADATA).exists)
    world.begin(world.newest)
    for ghost in ghosts:
        ghost.join(20)
    assert world.newest == Position(1, 10)
    assert not (world.paths.checkpoints / "step-00000020.1" / COMMIT).exists()


def test_publication_between_choice_and_attempt_is_off_the_chain(world: World) -> None:
    """The one moment at which a ghost can still commit: it lies beyond where the new attempt started."""
    world.save(10)
    start = world.newest
    world.save(20)
    world.begin(start)
    assert world.newest == Position(1, 10)
    assert world.save(15)[0].ok  # type: ignore[union-attr]
    assert world.newest == Position(2, 15), "step 20 is an abandoned future, whatever its number"


def test_commit_waits_for_acks_of_this_generation(world: World) -> None:
    """Megatron-Bridge#5842: leftovers of another save in the result queue."""
    world.save(10)
    request = world.request(0, 20, world.attempt, world.origin, timeout_s=20.0)
    (process,) = started([request])
    wait_until(request.directory.exists)
    foreign = world.paths.checkpoints / "step-00000010.1" / ack_name(1)
    shutil.copy(foreign, request.directory / ack_name(1))
    process.join(20)
    outcome = poll(request.outcome, Phase.DONE)
    assert outcome is not None and "acknowledged as part of step-00000010.1" in outcome.error
    assert world.newest == Position(1, 10)


def test_a_generation_is_never_written_twice(world: World) -> None:
    """e1b: plain DCP overwrote a complete checkpoint in place and mixed two."""
    assert world.save(10)[0].ok  # type: ignore[union-attr]
    before = {p: p.read_bytes() for p in (world.paths.checkpoints / "step-00000010.1").iterdir()}
    outcomes = world.save(10)
    assert all(outcome and "File exists" in outcome.error for outcome in outcomes)
    after = {p: p.read_bytes() for p in (world.paths.checkpoints / "step-00000010.1").iterdir() if p in before}
    assert after == before and world.newest == Position(1, 10)


def test_cancelled_save_stops_at_the_next_block(world: World) -> None:
    request = world.request(0, 10, world.attempt, world.origin)
    request.outcome.with_name(request.outcome.name + ".cancel").touch()
    (process,) = started([request])
    process.join(10)
    outcome = poll(request.outcome, Phase.DONE)
    assert outcome is not None and "given up by its trainer" in outcome.error
    assert world.newest is None and request.slot_record.exists(), "the snapshot in memory is whole all the same"


def test_orphan_of_a_dead_trainer_ends_itself(world: World) -> None:
    """A worker outlived its SIGKILLed trainer by its whole write of 8 s."""
    ready = world.scratch / "ready"

    def trainer() -> None:
        child = fork.Process(target=_adopted, args=(os.getpid(), ready))
        child.start()
        while not ready.exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)

    process = fork.Process(target=trainer)
    process.start()
    process.join(10)
    pid = int(ready.read_text())
    end = time.monotonic() + 1.0
    while (running := _runs(pid)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not running


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _adopted(trainer: int, ready: Path) -> None:
    writer.adopt(trainer, ready)
    time.sleep(30)


@pytest.mark.parametrize("kind", ["flip", "truncate", "remove", "empty", "unreadable", "torn-commit", "stale"])
def test_damage_is_found_and_named(world: World, kind: faults.Damage) -> None:
    world.save(10)
    world.save(20)
    path = faults.damage(world.paths, Position(1, 20), kind, rank=1)
    problems = verify_generation(world.paths.checkpoints / "step-00000020.1")
    assert [problem.path for problem in problems] == [str(path)]
    assert not verify_generation(world.paths.checkpoints / "step-00000010.1")


def test_retention_never_counts_what_is_damaged(world: World) -> None:
    """marin#5386: 8,000 steps lost, for want of a second good one."""
    for step in (10, 20, 30):
        world.save(step)
    faults.damage(world.paths, Position(1, 30), "truncate", rank=1)
    assert world.save(40)[0].ok  # type: ignore[union-attr]
    whole = [p.step for p in committed(world.paths) if not verify_generation(world.paths.checkpoints / p.name)]
    assert whole == [10, 20, 40], "three whole ones stay; step 30 neither counts nor pushes one out"


def test_retention_counts_no_save_under_way(world: World) -> None:
    """Megatron-Bridge PR#4678, #5184, #4820; miles#1763: the last complete one went for one not yet written."""
    world.keep = 2
    for step in (10, 20):
        world.save(step)
    faults.arm(world.paths, StorageFault("late", "gathered", "delay", delay_s=3.0, from_step=30, saves=1))
    writers = started(world.requests(30))
    under_way = world.paths.checkpoints / "step-00000030.1"
    wait_until(lambda: all((under_way / ack_name(rank)).exists() for rank in (0, 1)))
    assert not prune(world.paths, 2, 0)
    assert committed(world.paths) == [Position(1, 10), Position(1, 20)]
    for process in writers:
        process.join(20)
    assert committed(world.paths) == [Position(1, 20), Position(1, 30)], (
        "the oldest goes after the new one has come"
    )


def test_retention_after_a_failed_save_keeps_the_last_good_one(world: World) -> None:
    """torchtitan PR#4197."""
    world.keep = 2
    world.save(10)
    faults.arm(world.paths, StorageFault("full", "write", "ENOSPC", from_step=20))
    for step in (20, 30, 40):
        world.save(step, timeout_s=1.0)
    assert world.newest == Position(1, 10)


class Walk(RuleBasedStateMachine):
    """Save, crash, restart, roll back, prune and ghosts in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="walk-", dir="/dev/shm"))
        self.world = World(self.root, keep=2)
        self.step = 0
        self.expected: list[Position] = []
        """The chain, as it should be: ascending."""
        self.ghosts: list[list[Request]] = []
        self.names: set[str] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def _next(self) -> int:
        self.step += 10
        name = Position(self.world.attempt, self.step).name
        assert name not in self.names, "a name is used once"
        self.names.add(name)
        return self.step

    @rule()
    def save(self) -> None:
        step = self._next()
        assert all(outcome and outcome.ok for outcome in self.world.save(step))
        self.expected.append(Position(self.world.attempt, step))

    @rule(point=st.sampled_from(PROTOCOL + COMMITTING), rank=st.sampled_from((0, 1)))
    def crash(self, point: str, rank: int) -> None:
        step = self._next()
        fault = StorageFault(f"f{step}.{self.world.attempt}", point, "kill", rank=rank, from_step=step, saves=1)
        faults.arm(self.world.paths, fault)
        outcomes = self.world.save(step, timeout_s=1.5)
        faults.disarm(self.world.paths)
        if (self.world.paths.checkpoints / Position(self.world.attempt, step).name / COMMIT).exists():
            whole = point in ("committed", "pruned") or (point, rank) == ("acked", 1)
            assert whole or None not in outcomes
            self.expected.append(Position(self.world.attempt, step))
        self.restart()

    @rule()
    def restart(self) -> None:
        self.world.begin(self.expected[-1] if self.expected else None)
        self.step = self.expected[-1].step if self.expected else 0

    @precondition(lambda self: len(self.world_candidates()) > 1)
    @rule()
    def roll_back(self) -> None:
        start = self.world_candidates()[1]
        self.world.begin(start)
        self.expected = [position for position in self.expected if position <= start]
        self.step = start.step

    @rule()
    def ghost_is_born(self) -> None:
        """Its trainers die; it hangs somewhere and comes back later."""
        step = self._next()
        self.ghosts.append(self.world.requests(step, timeout_s=0.5))
        self.restart()

    @precondition(lambda self: self.ghosts)
    @rule()
    def ghost_comes_back(self) -> None:
        for process in started(self.ghosts.pop()):
            process.join(20)

    @rule(data=st.data())
    def an_older_attempt_is_lost(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.world.attempt))
        if number != newest_attempt(self.world.paths):
            (self.world.paths.attempts / f"{number}.json").write_bytes(b"torn")

    @rule()
    def prune(self) -> None:
        prune(self.world.paths, 2, 1)

    def world_candidates(self) -> list[Position]:
        return candidates(self.world.paths)

    @invariant()
    def newest_is_the_expected_one(self) -> None:
        found = self.world_candidates()
        assert found[:1] == self.expected[-1:]
        assert set(found) <= set(self.expected), "nothing off the chain"

    @invariant()
    def what_is_committed_is_whole(self) -> None:
        assert_whole(self.world)

    @invariant()
    def commits_belong_to_their_attempts(self) -> None:
        for position in committed(self.world.paths):
            record = load(Commit, self.world.paths.checkpoints / position.name / COMMIT)
            assert (record.attempt, record.step) == (position.attempt, position.step)
            assert record.attempt <= newest_attempt(self.world.paths)


Walk.TestCase.settings = settings(
    max_examples=6, stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
TestWalk = Walk.TestCase
TestWalk.pytestmark = [pytest.mark.integration]
