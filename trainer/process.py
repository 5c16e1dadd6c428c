"""What lives as long as the rank's process, through every in-process restart."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil
import torch
from nvidia_resiliency_ext.inprocess import CallWrapper

from trainer.checkpoint import CheckpointEngine
from trainer.config import TrainConfig
from trainer.events import Event, Ledger
from trainer.exit_codes import ExitCode
from trainer.faults.inject import Hooks, Injector
from trainer.faults.schema import Phase, load_dumped
from trainer.paths import PodContext
from trainer.resilience import in_process, learned, progress, verdict
from trainer.resilience.cause import last_error
from trainer.resilience.control import cycle_prefix
from trainer.resilience.groups import let_go
from trainer.resilience.heartbeat import Heartbeat
from trainer.run_record import record_run

log = logging.getLogger("steadfast")

TO_LEAVE_S = 15.0
"""Of the grace period after a SIGTERM, what the last save must leave for the rest."""


@dataclass(frozen=True)
class Ended:
    """How an attempt ended well."""

    code: ExitCode
    step: int
    reason: str


class Process:
    """Configuration, ledger, checkpoint engine, faults and signals of one rank."""

    def __init__(self, context: PodContext, config: TrainConfig) -> None:
        self.context, self.config = context, config
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = _device()
        derived = partial(config.recovery.timeouts, "cuda" if self.device.type == "cuda" else "cpu")
        self.timeouts = learned.table(derived, learned.learned_step_s(context.paths))
        self.ledger = Ledger(
            context.paths.events,
            f"rank-{self.rank:05d}",
            pod=context.pod,
            rank=self.rank,
            submission=context.submission,
        )
        self.ledger.write(
            Event.PROCESS_STARTED,
            start_s=_process_start_s(),
            imported_s=time.monotonic(),
            local_rank=int(os.environ["LOCAL_RANK"]),
        )
        self.injector = Injector(load_dumped(context.faults_json), context.paths.events, pod=context.pod)
        self.hooks: Hooks | None = None
        self.attempt = 0
        self.stop_asked = ""
        """Why this rank was asked for a planned stop; empty: it was not."""
        self._verdicts: tuple[Path, ...] = (context.paths.verdicts, context.shm / "verdicts")
        self.starts_without_step = 0
        self.starts = progress.Starts(context.paths, context.submission)
        if self.rank == 0:
            self._count_start()
        with self.starting():
            self._prepare()
        stop_at = os.environ.get("STEADFAST_STOP_AT")
        self._stop_at_s = float(stop_at) if stop_at else None
        self._call: CallWrapper | None = None
        signal.signal(signal.SIGTERM, self._terminated)

    def _prepare(self) -> None:
        context, config = self.context, self.config
        self.engine = CheckpointEngine(
            config=config.checkpoint,
            paths=context.paths,
            shm=context.shm,
            run=context.run,
            pod=context.pod,
            ledger=self.ledger,
            device=self.device,
        )
        # the device after the engine, which forks a process as long as this one has one thread
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.rank == 0:
            record_run(context, config, world_size=self.world_size, timeouts=self.timeouts)

    @classmethod
    def from_environment(cls) -> Process:
        """From what manifest and ft_launcher put into the environment; ends with a message on contradictions."""
        context = PodContext.from_environment()
        context.paths.make()
        config = TrainConfig.model_validate_json(context.config_json)
        if config.recovery.in_process and (problems := in_process.preconditions()):
            sys.exit("\n".join(problems))
        return cls(context, config)

    def watched_by(self, call: CallWrapper) -> Process:
        """Remember who watches this attempt for hangs."""
        self._call = call
        return self

    def unwatched(self) -> AbstractContextManager[None]:
        """For long calls that do no steps: building, restoring, draining. They have timeouts of their own."""
        return self._call.disable_hang_protection() if self._call else nullcontext()

    def ping(self) -> None:
        """Tell the in-process layer that a step was made."""
        if self._call:
            self._call.ping()

    def strike(self, phase: Phase, step: int | None = None) -> None:
        """Let a fault strike, if one is due. Before the first step, a fault's step is the one to come."""
        hooks = self.hooks or Hooks(poison=lambda: None, break_storage=lambda _: None)
        self.injector.at(phase, 1 if step is None else step, self.rank, hooks)

    def _count_start(self) -> None:
        """Rank 0: end the job when process after process ends before an attempt is opened.

        Whoever is to blame: a rank that dies while it loads takes rank 0's start with it, and leaves no word.
        """
        self.starts.begun()
        limit = self.config.recovery.max_no_progress_cycles
        if self.starts.begun_in_a_row() > limit:
            step = progress.saved_step(self.context.paths)
            error = last_error(self.context.paths, self.context.submission)
            reason = f"{limit} starts in a row after step {step} ended before training; last error: {error}"
            self.end_job(ExitCode.NO_PROGRESS, reason, step)

    @contextmanager
    def starting(self, iteration: int = 0) -> Iterator[None]:
        """What fails before an attempt is opened has no attempt to write it into the ledger."""
        self.ledger.bind(attempt=None)
        try:
            yield
        except SystemExit:
            raise
        except BaseException as error:
            self.ledger.write(
                Event.INTERRUPTED,
                layer="in_process" if self.config.recovery.in_process else "launcher",
                detail=f"{type(error).__name__}: {error}",
                step=progress.saved_step(self.context.paths) + 1,
                start=f"{cycle_prefix()}/{iteration}",
            )
            raise

    def end_job(self, code: ExitCode, reason: str, step: int) -> NoReturn:
        """Leave the verdict, have ft_launcher end the job rather than restart it, and end this rank.

        Over a connection of its own: an attempt that is over has closed its own.
        """
        self.verdict(code, reason, step)
        Heartbeat(self.timeouts).end_job(reason)
        raise SystemExit(code)

    def refuse_endless_starts(self) -> None:
        """Hand over to ft_launcher when starts in this process do not even reach a step.

        NVRx's Wrapper would try for ever: seen with a CUDA context that is lost (NVRx PR#139) and with a state
        that cannot be loaded.
        """
        self.starts_without_step += 1
        limit = self.config.recovery.max_no_progress_cycles
        if self.starts_without_step > limit:
            sys.exit(f"{limit} starts in this process did not reach a step; a new process may")

    def interrupted(self, _state: Any) -> None:
        """NVRx told this rank of a fault; runs in its monitor thread."""
        self.ledger.write(Event.INTERRUPTED, layer="in_process", detail="told")

    def release(self, _state: Any) -> None:
        """The communicators are gone; runs in the main thread before the next attempt.

        Raises RuntimeError, which ends the process, when its CUDA context is lost: only a new one can help, and
        NVRx would find out after a dozen tries (NVRx PR#139).
        """
        if self.device.type == "cuda":
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                raise RuntimeError(f"the CUDA context is lost, ft_launcher's turn: {error}") from error
        self.engine.abort()
        self.hooks = None
        let_go(sys.exc_info()[1])  # peers see the groups' sockets close
        self.ledger.write(Event.ABORTED)
        if self.config.recovery.efa_pause_s:
            time.sleep(self.config.recovery.efa_pause_s)

    def exit_at_once(self, error: BaseException) -> NoReturn:
        """End this process without NVRx's barrier, which would wait for the rank that is gone."""
        log.error("rank %d leaves, a peer's process is gone: %s", self.rank, error)
        end_process(ExitCode.FAILED)

    def verdict(self, code: ExitCode, reason: str, step: int, *, whole_job: bool = True) -> None:
        """Leave word for `trainer.launch`."""
        word = verdict.Verdict(code, reason, self.rank, step, self.attempt, whole_job)
        verdict.leave(word, self._verdicts, self.context.pod)

    def opened(self, attempt: int) -> None:
        """What earlier attempts have said of how the job ends does not hold for this one."""
        self.attempt = attempt
        self.ledger.bind(attempt=attempt)
        verdict.withdraw(self._verdicts, self.context.pod, attempt=attempt)

    def leave(self, ended: Ended) -> int:
        """The last act of a rank that ended well."""
        if ended.code is ExitCode.PLANNED_STOP:
            self.verdict(ended.code, ended.reason, ended.step)
        self.engine.close()
        self.ledger.close()
        return 0

    def stop_if_due(self) -> None:
        """Rank 0 asks for the planned stop once its time (the Capacity Block's end less a margin) has come."""
        if self.rank == 0 and self._stop_at_s is not None and time.time() >= self._stop_at_s:
            self.stop_asked = "the Capacity Block is about to end"
            self.engine.request_stop(self.stop_asked)
            self._stop_at_s = None

    def _terminated(self, _number: int, _frame: FrameType | None) -> None:
        grace_s = self.config.recovery.termination_grace_s
        self.stop_asked = "SIGTERM"
        self.engine.request_stop(self.stop_asked, within_s=max(grace_s - TO_LEAVE_S, grace_s / 2))


def run_to_the_end(main: Callable[[], int]) -> NoReturn:
    """Exit with what `main` returns, or with FAILED and a traceback for what it raises."""
    try:
        code: object = main()
    except SystemExit as leaving:
        code = leaving.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = ExitCode.FAILED
    end_process(code if isinstance(code, int) else int(code is not None))


def end_process(code: int) -> NoReturn:
    """Exit without the interpreter's teardown.

    Groups that were aborted in this process still own running threads, whose destruction would abort a rank that
    has ended well ("terminate called without an active exception"); and multiprocessing would wait for the
    writer, without a bound: seen as a rank that had raised and never ended.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def _process_start_s() -> float:
    """When this process began, on the clock of the ledger."""
    return time.monotonic() - (time.time() - psutil.Process().create_time())
