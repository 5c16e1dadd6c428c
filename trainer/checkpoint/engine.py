"""The checkpoint engine: what the training loop talks to.

    engine = CheckpointEngine(...)                       once per process
    restored = engine.open(control, state)               at each (re)start; collective
    for step in range(restored.step + 1, target + 1):
        engine.decide(step)                              what happens after this step; the same on all ranks
        ...forward, backward...
        engine.before_optimizer_step()                   a wait on the GPU at most
        optimizer.step()
        engine.after_step(step)                          the launch of a save, if one was decided
        if engine.stop_step() == step: break
    engine.finish(step)                                  the last save, committed

`abort()` ends an attempt in the same process (in-process restart); `open` may follow. `close()` ends everything.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.checkpoint.arena import ArenaDirectory
from trainer.checkpoint.backend import make_backend
from trainer.checkpoint.backend_types import Backend, Launch, StateNow
from trainer.checkpoint.chain import Position, candidates, take_attempt
from trainer.checkpoint.decisions import Action, Board, Decision
from trainer.checkpoint.judge import Judge
from trainer.checkpoint.layout import gather, plan
from trainer.checkpoint.mail import Session
from trainer.checkpoint.records import Attempt
from trainer.checkpoint.restore import Loaded, Restorer
from trainer.checkpoint.retention import sweep
from trainer.checkpoint.staging import check_same, locals_of
from trainer.checkpoint.state import Control, Restored, Saveable, check_listed
from trainer.config import CheckpointConfig
from trainer.events import Event, Ledger
from trainer.paths import RunPaths

log = logging.getLogger(__name__)

ABORT_TIMEOUT_S = 10.0
SLOT_GRACE_S = 5.0
"""A rank may learn a little later than rank 0 that its slot is free; beyond that its save fails."""
END_POLL_S, END_GRACE_S = 0.02, 1.0
MIN_PATIENCE_S = 1.0


class SavesFailingError(Exception):
    """More saves in a row have failed than `checkpoint.tolerate_failures`; the run ends with 90."""


class CheckpointEngine:
    """See the module. Its methods are for the training thread, `request_stop` also for signal handlers."""

    def __init__(
        self,
        *,
        config: CheckpointConfig,
        paths: RunPaths,
        shm: Path,
        run: str,
        pod: str,
        ledger: Ledger,
        device: torch.device,
    ) -> None:
        self._config, self._paths, self._ledger, self._device = config, paths, ledger, device
        self._directory = ArenaDirectory(shm, run, pod)
        rank = int(os.environ.get("RANK", "0"))
        self._backend: Backend = make_backend(config, paths, self._directory, ledger, device, rank)
        self._control: Control | None = None
        self._state: Saveable | None = None
        self._board: Board | None = None
        self._tensors: dict[str, torch.Tensor] = {}
        self._bound: dict[str, torch.Tensor] = {}
        self._published = 0
        self._killed_s: float | None = None

    # starts and ends

    def open(self, control: Control, state: Saveable, *, layer: str = "") -> Restored:
        """Agree on where to go on, load it, and get ready to save. Collective over `control.group`.

        Raises ValueError naming a tensor that the state does not list; ArenaError, MismatchError,
        NothingLoadableError; TimeoutError or RuntimeError from the group.
        """
        if self._board is not None:
            self.abort()
        started = time.monotonic()
        self._control, self._state = control, state
        refuse_unlisted(state, control.group)
        tensors = state.device_tensors()
        layout = plan(tensors, state.host_state(), control.group)
        planned = time.monotonic()
        self._layout = layout
        arena = self._backend.prepare(layout, self._pods_like_mine(control))
        prepared = time.monotonic()
        loaded = Restorer(control, self._paths, layout, arena, self._ledger, self._backend.landing).restore(state)
        restored = self._begin_attempt(control, loaded, layer)
        self._bind()
        held = frozenset(position for rank in gather(self._backend.left(), control.group) for position in rank)
        self._start(control, restored, held)
        self._ledger.write(
            Event.RESTORED,
            step=restored.step,
            generation=restored.generation,
            tier=restored.tier,
            bytes=loaded.read_bytes,
            duration_s=time.monotonic() - started,
            plan_s=planned - started,
            prepare_s=prepared - planned,
            verify_s=loaded.verify_s,
            apply_s=loaded.apply_s,
        )
        return restored

    def _pods_like_mine(self, control: Control) -> int:
        pods = gather(str(self._directory.path), control.group)
        return pods.count(str(self._directory.path))

    def _begin_attempt(self, control: Control, loaded: Loaded, layer: str) -> Restored:
        """Rank 0 takes the number, durable before the first step; everyone learns it."""
        position = loaded.candidate.position if loaded.candidate else None
        tier = loaded.candidate.tier if loaded.candidate else "none"
        step = position.step if position else 0
        origin = position.name if position else None
        number = 0
        if control.rank == 0:
            record = Attempt(0, origin, tier, step, control.world_size, time.time(), layer)
            number = take_attempt(self._paths, record).attempt
            self._ledger.bind(attempt=number)
            self._ledger.write(
                Event.ATTEMPT_OPENED, sync=True, step=step, tier=tier, world_size=control.world_size, layer=layer,
                **{"from": origin},
            )  # fmt: skip
            for name in sweep(self._paths):
                self._ledger.write(Event.PRUNED, generation=name, reason="unfinished save of an earlier attempt")
        number = gather(number, control.group)[0]
        self._ledger.bind(attempt=number)
        return Restored(number, step, origin, tier)

    def _start(self, control: Control, restored: Restored, held: frozenset[Position]) -> None:
        self._restored = restored
        self._board = Board(control.store, control.rank, restored.step + 1, control.timeout_s)
        session = Session(
            control.rank, control.world_size, restored.attempt, control.group, control.store, self._board, held
        )
        self._backend.begin(session)
        self._launches = 0
        self._judge = Judge(self._config, self._backend, self._ledger, restored.step)
        self._last_saved = restored.step if restored.generation else -1
        if control.rank == 0:
            self._published = restored.step
            self._publish(self._judge.judge(restored.step + 1))

    def abort(self) -> None:
        """End the attempt, in bounded time: nothing of it may be committed any more. Arena and writer stay.

        Training does not wait for storage here: a write that has been given up may take until its fsync is over.
        """
        if self._board is not None:
            self._board.close()
            self._board = None
        if not self._backend.abandon(ABORT_TIMEOUT_S):
            log.error("a writer hangs in the kernel; its slot stays fenced")
        # nothing of the attempt may outlive it: model, optimizer and groups are made anew
        self._tensors, self._bound = {}, {}
        self._state = self._control = None

    def close(self) -> None:
        """End helper threads and the writer; the arena's files stay for the next attempt in this pod."""
        self.abort()
        self._backend.close()
        self._directory.close()

    # every step

    def decide(self, step: int) -> Decision:
        """What happens after `step`. Rank 0 publishes what happens after the next."""
        board, control = self._open_board()
        if control.rank == 0 and step + 1 > self._published:
            self._judge.time_step()
            self._publish(self._judge.judge(step + 1))
        decision = board.of(step)
        self._backend.settle(decision, self._bound)
        return decision

    def before_optimizer_step(self) -> None:
        """Keep the optimizer from changing what is still being copied: a wait on the GPU, none on the host."""
        self._backend.guard()

    def saves_after(self, step: int) -> bool:
        """Whether the state after `step` will be saved, as far as `decide` has been told."""
        return self._open_board()[0].of(step).saves

    def after_step(self, step: int) -> None:
        """Launch the save that was decided for this step. Raises SavesFailingError, on all ranks at this step."""
        board, _ = self._open_board()
        decision = board.of(step)
        if decision.action is Action.FAIL:
            raise SavesFailingError(decision.reason)
        if decision.saves:
            patient = decision.action is Action.STOP
            self._launch(step, persist=decision.persists, stage=decision.stage, patient=patient)
        self._backend.poll()

    def request_stop(self, reason: str, within_s: float | None = None) -> None:
        """Ask for a planned stop: all ranks save after the same step, two after rank 0 hears of it, and leave.

        `within_s`: what this rank has until it is killed; neither the save nor `finish` waits longer then.
        """
        if within_s is not None and self._killed_s is None:
            self._killed_s = time.monotonic() + within_s
        self._backend.request_stop(reason)

    def stop_step(self) -> int | None:
        """The step after which all ranks stop, once it is decided."""
        return self._board.stop_step() if self._board is not None else None

    def finish(self, step: int, *, timeout_s: float | None = None) -> bool:
        """Have the state after `step` committed. Collective in effect: every rank calls it for the same step.

        Returns False if time ran out, after logging which generation a resumed run will start from.
        Raises SavesFailingError if the save failed.
        """
        _, control = self._open_board()
        if (self._restored.step, self._restored.tier) == (step, "storage"):
            return True
        started = time.monotonic()
        bound_s = self._patience_s(timeout_s)
        end_s = started + bound_s
        if self._last_saved != step or not self._backend.will_persist(step):
            self._backend.drain(bound_s)  # a snapshot of this very step may be under way
            self._launch(step, persist=True, stage="", patient=True, end_s=end_s)
        position = Position(self._restored.attempt, step)
        outcome = self._agree_on_end(control, position, end_s)
        self._backend.drain(max(0.0, end_s - time.monotonic()))  # what is older is being deleted
        self._ledger.write(Event.DRAIN, start_s=started, end_s=time.monotonic())
        if outcome == "committed":
            return True
        if outcome == "late":
            log.warning(
                "%.0f s did not suffice to commit %s; a resumed run starts from %s",
                bound_s, position.name, self.resumes_from,
            )  # fmt: skip
            return False
        raise SavesFailingError(f"the last save, {position.name}, failed: {outcome}")

    def _patience_s(self, timeout_s: float | None = None) -> float:
        """For the last save."""
        left_s = self._config.drain_timeout_s
        if self._killed_s is not None:
            left_s = min(left_s, max(MIN_PATIENCE_S, self._killed_s - time.monotonic()))
        return left_s if timeout_s is None else min(left_s, timeout_s)

    @property
    def resumes_from(self) -> str:
        """The generation that a run resumed now would start from."""
        newest = next(iter(candidates(self._paths)), None)  # rank 0 alone is told of commits; here any may ask
        return newest.name if newest else "the beginning"

    def _agree_on_end(self, control: Control, position: Position, end_s: float) -> str:
        """What became of it by then, in rank 0's words: the others wait a little longer than it does."""
        key = f"finished/{position.name}"
        if control.rank == 0:
            over = self._backend.drain(max(0.0, end_s - time.monotonic()), of=position)
            outcome = self._backend.fate(position) if over else "late"
            control.store.set(key, outcome)
            return outcome
        deadline_s = max(end_s, time.monotonic()) + END_GRACE_S
        with contextlib.suppress(RuntimeError):  # the store may go while we ask: nobody will tell us then
            while time.monotonic() < deadline_s:
                if control.store.check([key]):
                    return control.store.get(key).decode()
                time.sleep(END_POLL_S)
        return "late"

    @property
    def saving(self) -> bool:
        """Whether a save is being copied or written; the ledger marks the steps beside it."""
        return self._backend.under_way()

    # rank 0's judgement

    def _publish(self, decision: Decision) -> None:
        assert self._board is not None
        self._board.publish(decision)
        self._backend.tell(decision)
        self._published = decision.step
        if decision.action not in (Action.NONE, Action.SKIP):
            kind = "persist" if decision.persists else "snapshot"
            action = {Action.SNAPSHOT: "go", Action.PERSIST: "go"}.get(decision.action, decision.action)
            self._ledger.write(
                Event.SAVE_DECIDED, step=decision.step, decision=str(action), kind=kind, reason=decision.reason
            )

    # launches

    def _launch(
        self, step: int, *, persist: bool, stage: str, patient: bool = False, end_s: float | None = None
    ) -> None:
        assert self._state is not None
        self._rebind()
        wait_s = self._config.drain_timeout_s if self._config.overlap == "wait" else SLOT_GRACE_S
        if patient:
            wait_s = self._patience_s() if end_s is None else max(0.0, end_s - time.monotonic())
        position = Position(self._restored.attempt, step)
        self._last_saved, self._judge.launched = step, True
        self._launches += 1
        ticket = f"{position.attempt}.{self._launches}"
        launch = Launch(position, ticket, self._restored.generation, persist, stage, wait_s)
        self._backend.launch(launch, StateNow(self._tensors, self._bound, self._state.host_state()))

    def _bind(self) -> None:
        assert self._state is not None
        self._tensors = self._state.device_tensors()
        self._bound = locals_of(self._tensors)

    def _rebind(self) -> None:
        """`set_state_dict` and friends replace tensors: look again at each save. Raises ValueError."""
        before = self._bound
        self._bind()
        if self._bound.keys() != before.keys():
            raise ValueError(f"the state changed its keys: {sorted(self._bound.keys() ^ before.keys())}")
        if _addresses(before) != _addresses(self._bound):
            log.info("tensors of the state were replaced; saving the new ones")
            for item in self._layout.items:
                if item.on_device:
                    check_same(item, self._bound[item.fqn])

    def _open_board(self) -> tuple[Board, Control]:
        if self._board is None or self._control is None:
            raise RuntimeError("call open() first")
        return self._board, self._control

    @property
    def overheads(self) -> dict[str, Any]:
        """What saving costs here: bytes, seconds, and what training waited for decisions."""
        waited_s = self._board.waited_s if self._board else 0.0
        return {**self._backend.overheads(), "decisions_waited_s": waited_s}


def refuse_unlisted(state: Saveable, group: dist.ProcessGroup) -> None:
    """On all ranks what is wrong on one: the others would wait for it. Raises ValueError naming ranks, tensors."""
    try:
        check_listed(state)
        problem = ""
    except ValueError as error:
        problem = str(error)
    if found := [f"rank {rank}: {why}" for rank, why in enumerate(gather(problem, group)) if why]:
        raise ValueError("; ".join(found))


def _addresses(tensors: Mapping[str, torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors.values()]
