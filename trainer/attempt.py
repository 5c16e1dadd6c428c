"""One attempt: from forming the groups to the last step, or to whatever ends it before."""

from __future__ import annotations

import logging
import math
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from trainer import data, model, state, step
from trainer.checkpoint import SavesFailingError
from trainer.checkpoint.decisions import Action
from trainer.events import Event
from trainer.exit_codes import ExitCode
from trainer.faults.inject import Hooks
from trainer.faults.schema import Phase
from trainer.faults.storage import break_storage
from trainer.garbage import Collector
from trainer.process import Ended, Process
from trainer.resilience import control, pace, progress
from trainer.resilience.cause import last_error
from trainer.resilience.heartbeat import Heartbeat
from trainer.resilience.learned import StepTimes

log = logging.getLogger("steadfast")


class NonFiniteError(RuntimeError):
    """A gradient that is not finite, where the settings say to stop."""


class Attempt:
    """Groups, model, optimizer and the step at which to go on. Use as a context manager, through `open`."""

    def __init__(self, process: Process, iteration: int) -> None:
        self.process, self.config, self.engine = process, process.config, process.engine
        self.ledger = process.ledger
        started_s = time.monotonic()
        self.control = control.join(iteration=iteration, timeouts=process.timeouts, device=process.device)
        self.ledger.write(Event.GROUP_READY, duration_s=time.monotonic() - started_s)
        self.heartbeat = Heartbeat(process.timeouts)
        self.state = self._build()
        process.strike(Phase.LOAD)
        layer = "in_process" if iteration else "launcher"
        restored = self.engine.open(self.control, self.state, layer=layer)
        process.opened(restored.attempt)
        self._refuse_loop(restored.step)
        self._failed_last_saves = process.starts.failed_last_saves(self.config.loop.steps)
        self.first_step = restored.step + 1
        self.stepper = step.Stepper(self.config, self.state, process.device, self.engine.before_optimizer_step)
        process.hooks = Hooks(poison=self._poison, break_storage=partial(break_storage, process.context))
        self._last: step.StepRecord | None = None
        self._step_times = StepTimes(process.context.paths) if process.rank == 0 else None
        self._stop_reason = ""
        self._collector = Collector(self.config.loop.collect_garbage_every)
        recovery = self.config.recovery
        self._watch = pace.Stopwatch(self.state.model.blocks, process.device)
        self._pace = pace.Pace(
            self._watch,
            self.control.store,
            rank=process.rank,
            world_size=process.world_size,
            factor=recovery.slow_rank_factor,
            windows=recovery.slow_rank_windows,
        )

    @classmethod
    def open(cls, process: Process, iteration: int) -> Attempt:
        """Form, build and restore without being watched for hangs: these waits have timeouts of their own."""
        with process.unwatched():
            return cls(process, iteration)

    def _build(self) -> state.TrainState:
        started_s = time.monotonic()
        process = self.process
        state.seed_everything(self.config.loop.seed, process.rank)
        mesh = init_device_mesh(process.device.type, (process.world_size,))
        decoder = model.build_model(self.config.model, self.config.loop, mesh, process.device)
        optimizer = state.build_optimizer(decoder, self.config.optimizer)
        self.ledger.write(Event.BUILT, duration_s=time.monotonic() - started_s)
        return state.TrainState(decoder, optimizer, process.rank)

    def _poison(self) -> None:
        self.stepper.poison = True

    def _refuse_loop(self, restored_step: int) -> None:
        """End the job when restarts bring nothing: the GPUs are worth more than another try."""
        process = self.process
        limit = self.config.recovery.max_no_progress_cycles
        if process.starts.attempts_in_a_row(process.attempt, restored_step) > limit:
            reason = f"{limit + 1} starts in a row began after step {restored_step}; last error: "
            reason += last_error(process.context.paths, process.context.submission)
            self._end_job(ExitCode.NO_PROGRESS, reason, restored_step)
        if process.rank == 0:
            process.starts.opened(process.attempt, restored_step)
            progress.restored(process.context.paths, restored_step)

    def training_batches(self) -> Iterator[Tensor]:
        """This rank's batches from the first step on."""
        return data.batches(
            self.process.context.data / "train",
            self.config.data,
            rank=self.process.rank,
            world_size=self.process.world_size,
            first_step=self.first_step,
            last_step=self.config.loop.steps,
        )

    def begin(self, number: int) -> None:
        """Before a step: heartbeats, faults, and rank 0's decision about saving."""
        if number > self.first_step:  # the first step compiles: only the start's timeout holds until it is done
            self.heartbeat.beat()
            self.process.ping()
        self._watch.start()
        self.process.strike(Phase.STEP, number)
        self.process.stop_if_due()
        self._watch.pause()
        decision = self.engine.decide(number)
        if decision.action is Action.STOP:
            self._stop_reason = decision.reason

    def end(self, number: int) -> None:
        """After a step: save if that was decided, and write what is known of the steps before."""
        self._collector.after_step(number)
        before_s = time.monotonic()
        self.process.strike(Phase.SAVE, number)
        if self.config.optimizer.non_finite == "stop" and self.engine.saves_after(number):
            self._refuse_non_finite(number, self.stepper.newest_grad_norm())
        with self._ending_if_saves_fail(number):
            self.engine.after_step(number)
        self.process.starts_without_step = 0
        self.stepper.ended(blocked_s=time.monotonic() - before_s, saving=self.engine.saving)
        self._record(keep=1)
        for slow in self._pace.after_step(number):
            self.ledger.write(
                Event.SLOW_RANK, step=number, slow=slow.rank, factor=slow.factor, windows=slow.windows
            )
            log.warning("rank %d is %.1f times slower than the others (%d windows)", *vars(slow).values())

    def _record(self, *, keep: int) -> None:
        for record in self.stepper.records(keep=keep):
            self.ledger.write(Event.STEP, **asdict(record))
            self._last = record
            if self._step_times and record.step > self.first_step:
                self._step_times.add(record.end_s - record.start_s)
            if record.step % self.config.loop.log_every == 0:
                log.info(self._line(record))
            if self.config.optimizer.non_finite == "stop":
                self._refuse_non_finite(record.step, record.grad_norm)

    @staticmethod
    def _refuse_non_finite(number: int, grad_norm: float) -> None:
        """End the attempt. Before a save that would be loaded again, and otherwise a step late, without a wait."""
        if not math.isfinite(grad_norm):
            raise NonFiniteError(f"step {number}: gradient norm {grad_norm}")

    def _line(self, record: step.StepRecord) -> str:
        seconds = record.end_s - record.start_s
        rate = record.tokens / seconds
        line = f"step {record.step} loss {record.loss:.4f} grad {record.grad_norm:.3f} {rate:,.0f} tokens/s/rank"
        if peak := self.config.loop.peak_tflops_per_gpu:
            flops = model.flops_per_token(self.config.model, self.config.data.sequence_length)
            line += f" MFU {100 * rate * flops / (peak * 1e12):.1f} %"
        return line

    def evaluate(self, number: int) -> None:
        """Mean loss over the held-out part, on all ranks together."""
        start_s = time.monotonic()
        self.process.strike(Phase.EVALUATION, number)
        held_out = data.batches(
            self.process.context.data / "eval",
            self.config.data,
            rank=self.process.rank,
            world_size=self.process.world_size,
            first_step=1,
            last_step=self.config.loop.eval_batches,
        )
        loss = step.evaluate(self.state.model, self._beating(held_out), self.process.device)
        dist.all_reduce(loss, dist.ReduceOp.SUM)
        mean = loss.item() / self.process.world_size
        self.ledger.write(Event.EVALUATION, step=number, start_s=start_s, end_s=time.monotonic(), loss=mean)
        log.info("step %d evaluation loss %.4f", number, mean)

    def _beating(self, batches: Iterator[Tensor]) -> Iterator[Tensor]:
        for batch in batches:
            self.heartbeat.beat()
            self.process.ping()
            yield batch

    def stopped(self, number: int) -> Ended:
        """A planned stop: the state of this step is saved and committed before anyone leaves.

        If that save fails, the stop stays a stop: nothing is trained that the failure could cost later.
        """
        try:
            shortfall = "" if self._close(number) else f"no time was left to commit step {number}"
        except SavesFailingError as error:
            shortfall = str(error)
        return self._stop(number, self._stop_reason, shortfall)

    def _stop(self, number: int, reason: str, shortfall: str) -> Ended:
        if shortfall:
            reason += f"; {shortfall}; a resumed run starts from {self.engine.resumes_from}"
            log.warning(reason)
        self.ledger.write(Event.PLANNED_STOP, step=number, reason=reason)
        return Ended(ExitCode.PLANNED_STOP, number, reason)

    def finished(self, number: int) -> Ended:
        """The target: last generation committed, final figures, then the completion record.

        Whoever was asked to stop meanwhile stops, whatever became of the last save: it is about to be killed.
        """
        try:
            shortfall = "" if self._close(number) else f"no time was left to commit step {number}, the last"
        except SavesFailingError as error:
            if not self.process.stop_asked:
                self._retry_last_save(number, error)
            shortfall = str(error)
        if shortfall and self.process.stop_asked:
            return self._stop(number, self.process.stop_asked, shortfall)
        if shortfall:
            shortfall += f"; a resumed run starts from {self.engine.resumes_from}"
            self._end_job(ExitCode.SAVES_FAIL, shortfall, number)
        digest = model.params_sha256(self.state.model)
        loss = self._mean_last_loss()
        if self.process.rank == 0:
            final: dict[str, Any] = {
                "step": number,
                "final_loss": loss,
                "params_sha256": digest,
                "num_params": self.config.model.num_params,
            }
            self.ledger.write(Event.FINAL, **final)
            progress.write_completion(self.process.context.paths, final)
        self.ledger.write(Event.FINISHED, step=number)
        dist.barrier(group=self.control.group)
        return Ended(ExitCode.TARGET_REACHED, number, "target reached")

    def _retry_last_save(self, number: int, error: SavesFailingError) -> NoReturn:
        """A failed last save costs the attempt: the next one has a new writer and saves the same state again.

        All ranks end the job with 90 at the same failure, as they count those that earlier attempts have noted.
        """
        if self.process.rank == 0:
            self.process.starts.unsaved(number)
        if self._failed_last_saves >= self.config.checkpoint.tolerate_failures:
            self._end_job(ExitCode.SAVES_FAIL, str(error), number)
        raise error

    def _close(self, number: int) -> bool:
        """Whether the state after this step is committed. Raises SavesFailingError."""
        self._record(keep=0)
        self.heartbeat.close()  # the drain has a timeout of its own, and no steps
        with self.process.unwatched():
            return self.engine.finish(number)

    @contextmanager
    def _ending_if_saves_fail(self, number: int) -> Iterator[None]:
        """Training on without saves only grows what a fault loses: the job ends with 90."""
        try:
            yield
        except SavesFailingError as error:
            self._end_job(ExitCode.SAVES_FAIL, str(error), number)

    def _end_job(self, code: ExitCode, reason: str, number: int) -> NoReturn:
        self.heartbeat.close()
        self.process.end_job(code, reason, number)

    def _mean_last_loss(self) -> float | None:
        if self._last is None:  # nothing left to do: begun at the target
            return progress.recorded_loss(self.process.context.paths, self.first_step - 1, self.process.world_size)
        loss = torch.tensor(self._last.loss, dtype=torch.float64)
        dist.all_reduce(loss, group=self.control.group)
        return loss.item() / self.process.world_size

    def __enter__(self) -> Attempt:
        self._collector.take_over()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._collector.give_back()
        self.heartbeat.close()
        if error is None:
            dist.destroy_process_group()
            return
        self.ledger.write(
            Event.INTERRUPTED,
            layer="in_process" if self.config.recovery.in_process else "launcher",
            detail=f"{type(error).__name__}: {error}",
            step=self.state.step + 1,
        )
        # Frames and this object would keep model, optimizer and process groups alive into the next attempt; and
        # as long as gloo's sockets are open, peers wait for their timeout instead of seeing them close.
        traceback.clear_frames(trace)
        del self.state, self.stepper, self.control, self._watch, self._pace
