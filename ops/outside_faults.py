"""Faults from outside the pod: whoever follows the run strikes when its ledger says that the moment has come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ops.errors import InvalidInputError
from ops.follow import PATIENCE_S, is_passing
from ops.ledger_tail import LedgerTail
from trainer.events import Event, Ledger
from trainer.faults.schema import FROM_OUTSIDE, Fault, Phase

POLL_S = 0.02
RETRY_S = 1.0
WRITER = "follower"
_BEFORE_STEPS = frozenset({Phase.START_UP, Phase.LOAD, Phase.RECOVERY})

Record = Mapping[str, Any]
Act = Callable[[], None]


class Hand(Protocol):
    """What reaches into the cluster. Each blow is prepared first, so that little time passes after its record."""

    def blow(self, fault: Fault, pod: str | None) -> tuple[str, Act] | None:
        """`(what is hit, act)`; None while there is nothing there to hit. `pod` runs the fault's rank."""

    def whole(self) -> bool:
        """Every pod of the run is up, so that the fault meets the job it was planned for."""

    def heal(self, *, at_once: bool = False) -> None:
        """Give back what a real environment would: called again and again, with `at_once` at the end."""


@dataclass
class Moment:
    """Whether a fault's phase is reached, from records in the order in which they are seen."""

    fault: Fault
    eval_every: int
    retry_at_s: float = field(default=0.0, init=False)
    """Nobody asks the cluster again before, when it was not to be struck."""
    _triggered: bool = field(default=False, init=False)

    def reached_by(self, record: Record) -> bool:
        """Call with every record."""
        fault, event = self.fault, record["event"]
        if event == Event.FAULT_INJECTED and record["step"] == fault.step and record["id"] != fault.id:
            self._triggered = True
        if record.get("rank") != fault.rank:
            return False
        match fault.phase:
            case Phase.START_UP:
                return bool(event == Event.PROCESS_STARTED)
            case Phase.LOAD:
                return bool(event == Event.BUILT)
            case Phase.RECOVERY:
                return self._triggered and event == Event.GROUP_READY
            case Phase.SAVE:
                return bool(event == Event.SNAPSHOT and record["step"] >= fault.step)
            case Phase.EVALUATION:
                return self._step_done(record, fault.step) and record["step"] % (self.eval_every or 1) == 0
        if fault.step == 1 and event == Event.RESTORED:
            return True
        return self._step_done(record, fault.step - 1)

    @staticmethod
    def _step_done(record: Record, step: int) -> bool:
        return bool(record["event"] == Event.STEP and record["step"] >= step)


class Striker:
    """Reads a run's ledger as it grows, and strikes each fault once."""

    def __init__(self, faults: Sequence[Fault], events: Path, hand: Hand, eval_every: int) -> None:
        self._waiting = [Moment(fault, eval_every) for fault in faults]
        self._events, self._hand = events, hand
        self._tail = LedgerTail(events)
        self._pods: dict[int, str] = {}
        self._due: list[Moment] = []
        self._owed: tuple[str, Act] | None = None
        """The act that the last record tells of, and what to say when it is done."""
        self.said: list[str] = []

    def look(self) -> None:
        """One look at what is new. After an error, the next look takes up what this one has not done."""
        for record in self._tail.fresh():
            if record.get("rank") is not None:
                self._pods[record["rank"]] = record["pod"]
            # Kept over a pause: some records come once.
            self._due += [m for m in self._waiting if m.reached_by(record) and m not in self._due]
        self._act()
        for moment in [m for m in self._due if time.monotonic() >= m.retry_at_s]:
            self._strike(moment)
        self._hand.heal()

    def close(self) -> None:
        """Leave the cluster as it was found."""
        self._hand.heal(at_once=True)

    def _strike(self, moment: Moment) -> None:
        """Not now, if the job is not whole: a later record of a step brings it up again, or the end of a pause."""
        fault, before_steps = moment.fault, moment.fault.phase in _BEFORE_STEPS
        moment.retry_at_s = time.monotonic() + RETRY_S
        ready = before_steps or self._hand.whole()
        prepared = self._hand.blow(fault, self._pods.get(fault.rank)) if ready else None
        if prepared is None:
            if not before_steps:
                self._due.remove(moment)
            return
        self._due.remove(moment)
        self._waiting.remove(moment)
        target, act = prepared
        if self._claim(fault, target):
            said = f"fault {fault.id}: {fault.class_.value} strikes {target} at step {fault.step}"
            self._owed = (said, act)
            self._act()

    def _act(self) -> None:
        """What has its record must be done, if need be in a later look."""
        if self._owed is not None:
            said, act = self._owed
            act()
            self._owed = None
            self.said.append(said)

    def _claim(self, fault: Fault, target: str) -> bool:
        """The fault's record, by exclusive creation as trainer.faults.inject makes it."""
        try:
            ledger = Ledger(self._events, f"fault-{fault.id}", pod=WRITER, exclusive=True)
        except FileExistsError:
            return False
        fields = {"id": fault.id, "class": fault.class_.value, "step": fault.step, "fault_rank": fault.rank}
        ledger.write(Event.FAULT_INJECTED, sync=True, target=target, **fields)
        ledger.close()
        return True


def from_outside(faults: Sequence[Fault]) -> list[Fault]:
    """Those that no rank does to itself."""
    return [fault for fault in faults if fault.class_ in FROM_OUTSIDE]


def refuse_where_nobody_strikes(faults: Sequence[Fault], *, local: bool, followed: bool = True) -> None:
    """Raises InvalidInputError when the environment or the way of submitting leaves nobody to strike."""
    named = sorted({fault.class_.value for fault in from_outside(faults)})
    if named and not local:
        raise InvalidInputError(
            f"{', '.join(named)}: only with --local",
            details=[
                "a fault's record must be in the run's ledger before the act, and the ledger is on the "
                "environment's file system, which is not mounted here"
            ],
            fix="on AWS take the instance away by hand (docs/campaigns.md); every other class works there",
        )
    if named and not followed:
        raise InvalidInputError(
            f"{', '.join(named)}: not with --detach: whoever follows the run strikes", fix="leave out --detach"
        )


@contextmanager
def striking(striker: Striker | None) -> Iterator[Callable[[], Iterator[str]]]:
    """Strike from a thread while the run is followed; gives what was done since last asked, as lines.

    An error of the thread that does not pass is raised where the lines are asked for, and at the end.
    """
    if striker is None:
        yield lambda: iter(())
        return
    over, errors = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            _look_until(over, striker)
        except BaseException as error:
            errors.append(error)

    def lines() -> Iterator[str]:
        if errors:
            raise errors[0]
        while striker.said:
            yield striker.said.pop(0)

    thread = threading.Thread(target=work, name="faults", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        over.set()
        thread.join()
        striker.close()
    if errors:
        raise errors[0]


def _look_until(over: threading.Event, striker: Striker) -> None:
    """Look again and again, with as much patience for the API as who follows the run has."""
    done_s = time.monotonic()
    while not over.wait(POLL_S):
        try:
            striker.look()
            done_s = time.monotonic()
        except Exception as error:
            if not is_passing(error) or time.monotonic() - done_s > PATIENCE_S:
                raise
            over.wait(RETRY_S)
