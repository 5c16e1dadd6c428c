"""Faults from outside: when they strike, what they leave in the ledger, and where nobody could."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from ops.cluster import PodState
from ops.errors import InvalidInputError
from ops.ledger_tail import LedgerTail
from ops.local_hand import LocalHand
from ops.outside_faults import RETRY_S, Moment, Striker, refuse_where_nobody_strikes, striking
from trainer.events import Event, Ledger, read_ledger
from trainer.faults.schema import Fault, FaultClass, Phase

pytestmark = pytest.mark.unit


def fault(step: int = 20, phase: Phase = Phase.STEP, class_: FaultClass = FaultClass.POD_KILL) -> Fault:
    return Fault(id="f", class_=class_, rank=1, step=step, phase=phase)


class FakeHand:
    """Notes what was struck, and what the ledger held at that moment."""

    def __init__(self, events: Path) -> None:
        self.events, self.is_whole, self.there = events, True, True
        self.struck: list[tuple[str | None, bool]] = []
        self.healed = 0

    def blow(self, fault: Fault, pod: str | None) -> Any:
        def act() -> None:
            self.struck.append((pod, (self.events / f"fault-{fault.id}.jsonl").exists()))

        return (f"pod {pod}", act) if self.there else None

    def whole(self) -> bool:
        return self.is_whole

    def heal(self, *, at_once: bool = False) -> None:
        self.healed += at_once


@pytest.fixture(name="rank")
def _rank(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path, "rank-00001", pod="job-1", rank=1)


@pytest.fixture(name="hand")
def _hand(tmp_path: Path) -> FakeHand:
    return FakeHand(tmp_path)


def striker(hand: FakeHand, *faults: Fault) -> Striker:
    return Striker(faults, hand.events, hand, eval_every=15)


def test_it_strikes_the_ranks_pod_once_and_only_after_its_record(rank: Ledger, hand: FakeHand) -> None:
    watching = striker(hand, fault(20))
    rank.write(Event.STEP, step=18)
    watching.look()
    assert hand.struck == []
    rank.write(Event.STEP, step=19)
    watching.look()
    rank.write(Event.STEP, step=20)
    watching.look()
    assert hand.struck == [("job-1", True)]
    (record,) = [r for r in read_ledger(hand.events) if r["event"] == "fault_injected"]
    assert (record["id"], record["class"], record["step"], record["fault_rank"], record["target"]) == (
        "f",
        "pod_kill",
        20,
        1,
        "pod job-1",
    )


def test_a_resumed_follower_does_not_strike_again(rank: Ledger, hand: FakeHand) -> None:
    rank.write(Event.STEP, step=19)
    striker(hand, fault(20)).look()
    striker(hand, fault(20)).look()
    assert len(hand.struck) == 1


@pytest.mark.parametrize("missing", ["is_whole", "there"])
def test_it_waits_for_a_job_that_is_whole(
    rank: Ledger, hand: FakeHand, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.outside_faults.RETRY_S", 0.0)
    setattr(hand, missing, False)
    watching = striker(hand, fault(20))
    rank.write(Event.STEP, step=19)
    watching.look()
    assert hand.struck == [] and not (hand.events / "fault-f.jsonl").exists()
    setattr(hand, missing, True)
    rank.write(Event.STEP, step=25)
    watching.look()
    assert len(hand.struck) == 1


@pytest.mark.parametrize(
    ("phase", "event"), [(Phase.START_UP, Event.PROCESS_STARTED), (Phase.RECOVERY, Event.GROUP_READY)]
)
def test_a_moment_that_comes_once_is_kept_while_another_fault_waits(
    rank: Ledger, hand: FakeHand, phase: Phase, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, once = fault(20), Fault(id="g", class_=FaultClass.POD_KILL, rank=1, step=30, phase=phase)
    hand.is_whole = False
    watching = striker(hand, first, once)
    rank.write(Event.STEP, step=19)
    watching.look()
    hand.there = False
    Ledger(hand.events, "fault-other", pod="p").write(Event.FAULT_INJECTED, id="other", step=30)
    rank.write(event)
    watching.look()
    hand.there = True
    monkeypatch.setattr("time.monotonic", lambda now=time.monotonic: now() + RETRY_S)
    watching.look()
    assert watching.said == ["fault g: pod_kill strikes pod job-1 at step 30"]


def test_a_fault_of_the_first_step_that_finds_the_job_incomplete_strikes_later(
    rank: Ledger, hand: FakeHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.outside_faults.RETRY_S", 0.0)
    watching = striker(hand, fault(1))
    hand.is_whole = False
    rank.write(Event.RESTORED, step=0)
    watching.look()
    hand.is_whole = True
    rank.write(Event.STEP, step=1)
    watching.look()
    assert len(hand.struck) == 1


@pytest.mark.parametrize(
    ("phase", "step", "event", "fields"),
    [
        (Phase.START_UP, 1, Event.PROCESS_STARTED, {}),
        (Phase.LOAD, 1, Event.BUILT, {}),
        (Phase.STEP, 1, Event.RESTORED, {"step": 0}),
        (Phase.SAVE, 20, Event.SNAPSHOT, {"step": 20}),
        (Phase.EVALUATION, 30, Event.STEP, {"step": 30}),
    ],
)
def test_each_phase_has_its_record(phase: Phase, step: int, event: Event, fields: dict[str, Any]) -> None:
    moment = Moment(fault(step, phase), eval_every=15)
    assert not moment.reached_by({"event": event, "rank": 0, **fields}), "another rank's"
    assert not moment.reached_by({"event": Event.PERSIST_STARTED, "rank": 1, "step": 40})
    assert moment.reached_by({"event": event, "rank": 1, **fields})


def test_a_recovery_is_that_of_another_fault_of_the_same_step() -> None:
    moment = Moment(fault(20, Phase.RECOVERY), eval_every=15)
    ready = {"event": Event.GROUP_READY, "rank": 1}
    assert not moment.reached_by(ready)
    moment.reached_by({"event": Event.FAULT_INJECTED, "id": "other", "step": 19})
    assert not moment.reached_by(ready)
    moment.reached_by({"event": Event.FAULT_INJECTED, "id": "other", "step": 20, "rank": 0})
    assert moment.reached_by(ready)


def test_what_the_thread_does_is_told_and_what_it_broke_is_given_back(rank: Ledger, hand: FakeHand) -> None:
    rank.write(Event.STEP, step=19)
    with striking(striker(hand, fault(20))) as lines:
        told: list[str] = []
        while not told:
            told = list(lines())
    assert told == ["fault f: pod_kill strikes pod job-1 at step 20"]
    assert hand.healed == 1


def test_an_error_of_the_thread_is_raised(rank: Ledger, hand: FakeHand) -> None:
    def broken() -> bool:
        raise OSError("no cluster")

    hand.whole = broken  # type: ignore[method-assign]
    rank.write(Event.STEP, step=19)
    with pytest.raises(OSError, match="no cluster"), striking(striker(hand, fault(20))) as lines:
        while True:
            list(lines())


@pytest.mark.parametrize("error", [ApiException(status=503), ConnectionRefusedError("the server starts again")])
def test_an_error_that_passes_delays_a_fault(
    rank: Ledger, hand: FakeHand, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the record nothing has happened; after it the act is still owed."""
    monkeypatch.setattr("ops.outside_faults.RETRY_S", 0.0)
    whole, blow, failures = hand.whole, hand.blow, [error] * 2

    def fail() -> None:
        if failures:
            raise failures.pop()

    def whole_later() -> bool:
        if len(failures) == 2:
            fail()
        return whole()

    def blow_later(fault: Fault, pod: str | None) -> Any:
        target, act = blow(fault, pod)
        return target, lambda: (fail(), act())

    monkeypatch.setattr(hand, "whole", whole_later)
    monkeypatch.setattr(hand, "blow", blow_later)
    rank.write(Event.STEP, step=19)
    with striking(striker(hand, fault(20))) as lines:
        told: list[str] = []
        while not told:
            told = list(lines())
    assert (failures, hand.struck) == ([], [("job-1", True)])


def test_a_pod_that_goes_before_its_uid_is_read_is_not_there() -> None:
    def gone(*_: Any) -> Any:
        raise ApiException(status=404)

    pod = PodState("job-1", 1, "node-1", "Running", "", None)
    cluster: Any = SimpleNamespace(namespace="n", pods=lambda job: [pod])
    local: Any = SimpleNamespace(api_client=client.ApiClient)
    hand = LocalHand(local, cluster, "job", 2)
    hand._core = SimpleNamespace(read_namespaced_pod=gone)
    assert hand.blow(fault(), "job-1") is None


def test_without_faults_nothing_is_watched() -> None:
    with striking(None) as lines:
        assert list(lines()) == []


def test_a_torn_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    tail, file = LedgerTail(tmp_path), tmp_path / "a.jsonl"
    file.write_text('{"n": 1}\n{"n"')
    assert [r["n"] for r in tail.fresh()] == [1]
    with file.open("a") as stream:
        stream.write(": 2}\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"n": 3}) + "\n")
    assert [r["n"] for r in tail.fresh()] == [2, 3]
    assert list(tail.fresh()) == []


def test_where_nobody_could_strike_it_is_refused() -> None:
    inside = [fault(class_=FaultClass.SIGKILL)]
    refuse_where_nobody_strikes(inside, local=False)
    refuse_where_nobody_strikes([fault()], local=True)
    with pytest.raises(InvalidInputError, match="only with --local"):
        refuse_where_nobody_strikes([fault(), *inside], local=False)
    with pytest.raises(InvalidInputError, match="--detach"):
        refuse_where_nobody_strikes([fault()], local=True, followed=False)
