"""Saves under way: one helper thread brings each from its launch to its commit.

The training thread launches a snapshot and forgets it. Here its copy is polled, the writer gets the request once
the copy is done, its reports are read, a dead or stuck writer is noticed and replaced, and what happened is passed
on: to the ledger, to rank 0 through the store, and to the training thread through `failures_in_a_row`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from trainer.checkpoint.backend_types import Launch
from trainer.checkpoint.chain import Position
from trainer.checkpoint.decisions import Decision
from trainer.checkpoint.mail import Mail, Session, ticket_of_old
from trainer.checkpoint.reports import Outcome, Phase, clear, news
from trainer.checkpoint.staging import Copy
from trainer.checkpoint.worker import WriterProcess
from trainer.checkpoint.writer import Request
from trainer.events import Event, Ledger
from trainer.paths import RunPaths
from trainer.resilience.progress import tell_launcher

log = logging.getLogger(__name__)

BUSY_S = 0.005
IDLE_S = 0.05
CANCEL_S = 10.0
"""For a writer to let go of a save that another rank has given up."""
REPLACE_S = 5.0
"""For the helper thread to replace a writer."""
LET_GO_S = 60.0
"""For one to let go of a save of the attempt before: nobody waits for it."""


@dataclass
class Save:
    """One snapshot on its way. Times are CLOCK_MONOTONIC."""

    position: Position
    ticket: str
    slot: int
    copy: Copy
    request: Request
    stage: str
    launched_s: float
    launch_s: float
    deadline_s: float
    fenced: bool = False
    """Of an attempt that is over: it may become a snapshot in memory, and nothing else."""
    given_up: str = ""
    """Why, if another rank has failed. It counts once the own writer has answered: its commit may be through."""
    submitted: bool = False
    reported: set[Phase] = field(default_factory=set)
    checksum_s: float = 0.0
    slot_free: bool = False
    released: bool = False
    """Whether rank 0 has been told so."""
    done: bool = False

    @property
    def persists(self) -> bool:
        """Whether it goes to storage."""
        return self.request.persist

    def cancel(self) -> None:
        """Ask its writer to stop at the next block."""
        self.request.outcome.with_name(self.request.outcome.name + ".cancel").touch()


class Saves:
    """The helper thread and what it knows. Lives as long as the process; attempts come and go."""

    def __init__(self, writer: WriterProcess, paths: RunPaths, ledger: Ledger) -> None:
        self._writer, self._paths, self._ledger = writer, paths, ledger
        self._lock = threading.RLock()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._saves: list[Save] = []
        self._mail: Mail | None = None
        self._closed = False
        self.stop_reason: str | None = None
        """Set by a signal handler, which may do no more than that."""
        self._stop_sent = False
        self.failures_in_a_row = 0
        self.errors: dict[Position, str] = {}
        self.committed: Position | None = None
        self.last_commit_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="saves", daemon=True)
        self._thread.start()

    # called by the training thread

    def begin(self, session: Session) -> None:
        """A new attempt, which may find slots that writers still read for the last."""
        with self._lock:
            mail = Mail(session)
            left = {save.position: save for save in self._saves if not save.slot_free}
            for position in session.held:
                if position in left:
                    left[position].ticket, left[position].released = ticket_of_old(position), False
                else:
                    mail.say_released(ticket_of_old(position))
            self._mail, self._stop_sent, self.failures_in_a_row = mail, False, 0

    def tell(self, decision: Decision) -> None:
        """Rank 0: bring a decision to the others."""
        if self._mail is not None:
            self._mail.post(decision)
            self._wake.put(None)

    def add(self, save: Save) -> None:
        """Take over a snapshot that has been launched."""
        with self._lock:
            self._saves.append(save)
            if self._mail is not None:
                self._mail.launched(save.ticket, save.position)
        self._wake.put(None)

    def fail(self, launch: Launch, error: str) -> None:
        """A save that did not even begin here."""
        with self._lock:
            if self._mail is not None:
                self._mail.launched(launch.ticket, launch.position)
                self._mail.say_released(launch.ticket)
            self._failed(launch.position, launch.ticket, error, counts=launch.persist)

    @property
    def active(self) -> list[Save]:
        """What is not done."""
        with self._lock:
            return [save for save in self._saves if not save.done]

    @property
    def mail(self) -> Mail:
        """Of the attempt. Raises RuntimeError between two."""
        if self._mail is None:
            raise RuntimeError("no attempt is open")
        return self._mail

    def leased(self) -> set[int]:
        """Slots that may not be changed."""
        with self._lock:
            return {save.slot for save in self._saves if not save.slot_free}

    def left(self) -> list[Position]:
        """What still takes a slot here, between two attempts."""
        with self._lock:
            return [save.position for save in self._saves if not save.slot_free]

    def whole(self) -> bool:
        """Whether no snapshot is still to become whole here."""
        with self._lock:
            return all(save.done or Phase.HASHED in save.reported for save in self._saves)

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait, bounded, for something that the helper thread brings about.

        An in-process restart raises in the middle of it: a `Condition` would keep that from coming in until its
        wait is over, and may stay locked.
        """
        end_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() >= end_s:
                return False
            time.sleep(BUSY_S)
        return True

    def end(self, timeout_s: float) -> bool:
        """The attempt is over: nothing of it may be committed, its snapshots may still become whole.

        Waits, bounded, until they are whole or given up: a restore may want them. It does not wait for storage: a
        slot that is still being written keeps its content, and is not filled before its writer lets go. A writer
        that does not hash is replaced, by the helper thread, as any is; False if it holds on even then.
        """
        with self._lock:
            self._mail = None
            for save in self._saves:
                save.fenced = True
                save.deadline_s = min(save.deadline_s, time.monotonic() + LET_GO_S)
                if save.persists:
                    save.cancel()
        if self.wait(self.whole, timeout_s):
            return True
        with self._lock:
            for save in self._saves:
                save.deadline_s = 0.0
        return self.wait(self.whole, REPLACE_S) and not self._writer.stuck_pids

    def close(self) -> None:
        """End the helper thread."""
        self._closed = True
        self._wake.put(None)
        self._thread.join(timeout=5)

    # the helper thread

    def _run(self) -> None:
        while not self._closed:
            with contextlib.suppress(Empty):
                self._wake.get(timeout=BUSY_S if self._saves else IDLE_S)
            try:
                self._tick()
            except Exception:
                log.exception("the helper thread of the saves goes on")

    def _tick(self) -> None:
        if (mail := self._mail) is not None:
            self._correspond(mail)
        for save in list(self._saves):
            self._advance(save)
        with self._lock:
            for save in self._saves:
                self._release(save)
            self._saves = [save for save in self._saves if not (save.done and save.slot_free)]

    def _release(self, save: Save) -> None:
        if save.done and not save.slot_free:  # a writer in state D read it when it was given up
            save.slot_free = not self._writer.stuck_pids
        if save.slot_free and not save.released and self._mail is not None:
            save.released = True
            self._mail.say_released(save.ticket)

    def _correspond(self, mail: Mail) -> None:
        if self.stop_reason is not None and not self._stop_sent:
            mail.ask_to_stop(self.stop_reason)
            self._stop_sent = True
        open_saves = {save.ticket: save for save in self.active if not (save.fenced or save.given_up)}
        for ticket, why in mail.exchange(open_saves).items():
            save = open_saves[ticket]
            save.given_up = why
            save.cancel()
            save.deadline_s = min(save.deadline_s, time.monotonic() + CANCEL_S)

    def _advance(self, save: Save) -> None:
        try:
            if not save.submitted:
                self._submit(save)
            else:
                self._follow(save)
        except (OSError, ValueError, RuntimeError) as error:
            self._finish(save, error=f"{type(error).__name__}: {error}")
        if not save.done and time.monotonic() > save.deadline_s:
            self._overdue(save)

    def _submit(self, save: Save) -> None:
        if not save.copy.advance():
            return
        if not self._writer.alive:
            self._bury_writer(f"the writer process {self._writer.pid} died")
        self._writer.submit(save.request)
        save.submitted = True
        self._ledger.write(
            Event.SNAPSHOT,
            step=save.position.step,
            launch_s=save.launch_s,
            blocked_s=save.copy.blocked_s(),
            bytes=save.request.slot.cuts[-1],
            stage=save.stage,
        )
        if save.persists:
            self._ledger.write(Event.PERSIST_STARTED, step=save.position.step, generation=save.position.name)

    def _follow(self, save: Save) -> None:
        self._listen(save)
        if not save.done and not self._writer.alive:
            self._bury_writer(f"the writer process {self._writer.pid} died")

    def _listen(self, save: Save) -> None:
        for phase, outcome in news(save.request.outcome, save.reported).items():
            save.reported.add(phase)
            self._reached(save, phase, outcome)

    def _reached(self, save: Save, phase: Phase, outcome: Outcome) -> None:
        step, generation = save.position.step, save.position.name
        if phase is Phase.HASHED:
            save.checksum_s = outcome.checksum_s
            if outcome.ok and self._mail is not None:
                self._mail.say_whole(save.ticket)
            elif not outcome.ok:
                save.cancel()
        elif phase is Phase.WRITTEN:
            save.slot_free = Phase.HASHED in save.reported
            self._ledger.write(
                Event.RANK_WRITTEN,
                step=step,
                generation=generation,
                bytes=outcome.bytes,
                write_s=outcome.write_s,
                checksum_s=save.checksum_s,
                fsync_s=outcome.fsync_s,
            )
        elif phase is Phase.COMMITTED:
            self._committed(save, outcome)
        else:
            for name in outcome.pruned:
                self._ledger.write(Event.PRUNED, generation=name, reason="retention")
            self._finish(save, error=None if outcome.ok else outcome.error)

    def _committed(self, save: Save, outcome: Outcome) -> None:
        self.committed, self.failures_in_a_row = save.position, 0
        self.last_commit_s = outcome.end_s - save.launched_s
        if self._mail is not None and not save.fenced:
            self._mail.committed(save.ticket)
        self._ledger.write(
            Event.COMMITTED,
            step=save.position.step,
            generation=save.position.name,
            bytes=outcome.committed_bytes,
            commit_s=self.last_commit_s,
            end_s=outcome.end_s,
        )
        tell_launcher(self._paths, save.position.step)

    def _finish(self, save: Save, *, error: str | None, slot_free: bool = True) -> None:
        clear(save.request.outcome)
        error = save.given_up or error
        if error is not None and Phase.COMMITTED in save.reported:
            log.error("%s is committed; what came after that failed: %s", save.position.name, error)
        elif error is not None and not save.fenced:
            self._failed(save.position, save.ticket, error, counts=save.persists, heard=bool(save.given_up))
        save.slot_free = slot_free
        save.done = True  # the last word: a drain ends with it

    def _failed(self, position: Position, ticket: str, error: str, *, counts: bool, heard: bool = False) -> None:
        """Snapshots that are for memory alone do not count: what they are for goes on without them.

        `heard`: of another rank.
        """
        log.error("saving %s failed: %s", position.name, error)
        if counts:
            self.errors = {position: error}
        if self._mail is None:
            return
        if not heard:
            self._mail.say_failed(ticket, error)
        if not (self._mail.lead and counts):
            return
        self.failures_in_a_row += 1
        self._ledger.write(
            Event.SAVE_FAILED,
            step=position.step,
            generation=position.name,
            error=error,
            in_a_row=self.failures_in_a_row,
        )

    def _overdue(self, save: Save) -> None:
        """A wait without a bound is a hang: end the writer, and say what it hung in."""
        state = "hangs in the kernel (state D)" if self._writer.uninterruptible else "does not answer"
        self._bury_writer(f"the writer process {self._writer.pid} {state}")
        if not save.done:  # its copy hangs, not its writer
            self._finish(save, error="the copy from the device is not done")

    def _bury_writer(self, error: str) -> None:
        """Replace it; what it had not finished is lost, and what it may still read stays fenced."""
        self._writer.replace()
        stuck = bool(self._writer.stuck_pids)
        for save in self._saves:
            if save.submitted and not save.done:
                self._listen(save)  # once more: it may have reported, and died after that
            if save.submitted and not save.done:
                self._finish(save, error=error, slot_free=not stuck)
