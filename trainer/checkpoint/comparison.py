"""Other ways of saving, to be measured against: the same tensors, format, fsync and commit.

sync: `dcp.save`, training waits. dcp: `dcp.async_save` with its default stager. nvrx: NVRx 0.7.0's own planner,
`FileSystemWriterAsync` and queue, in the mode its authors advise for containers (shared memory, cached structure).
None of them makes checksums, so what they wrote is loaded unverified; none has a memory tier.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from typing_extensions import override

from trainer.checkpoint.backend_types import Backend, Launch, StateNow
from trainer.checkpoint.chain import Position
from trainer.checkpoint.decisions import Decision
from trainer.checkpoint.judge import Busy
from trainer.checkpoint.layout import Layout
from trainer.checkpoint.mail import STOP_KEY, Session
from trainer.checkpoint.records import METADATA, Commit, FileRecord, checksum
from trainer.checkpoint.retention import prune
from trainer.checkpoint.storage import PosixStorage
from trainer.checkpoint.worker import discard
from trainer.checkpoint.writer import CancelledError, seal_generation
from trainer.config import CheckpointConfig
from trainer.events import Event, Ledger
from trainer.paths import RunPaths

log = logging.getLogger(__name__)


class Pending(Protocol):
    """A save of another library under way."""

    def done(self, *, blocking: bool) -> bool:
        """Whether all ranks have written and `.metadata` is there. Raises what went wrong."""


Start = Callable[[dict[str, Any], Path, dist.ProcessGroup], Pending]


class _Finished(Pending):
    @override
    def done(self, *, blocking: bool) -> bool:
        return True


def save_sync(state: dict[str, Any], directory: Path, group: dist.ProcessGroup) -> Pending:
    """`dcp.save`."""
    save(state, storage_writer=_file_writer(directory), process_group=group)
    return _Finished()


class _Future:
    def __init__(self, future: Any) -> None:
        self._future = getattr(future, "upload_completion", future)

    def done(self, *, blocking: bool) -> bool:
        if not blocking and not self._future.done():
            return False
        self._future.result()
        return True


def save_dcp(state: dict[str, Any], directory: Path, group: dist.ProcessGroup) -> Pending:
    """`dcp.async_save`, a thread and pageable copies."""
    return _Future(async_save(state, storage_writer=_file_writer(directory), process_group=group))


def _file_writer(directory: Path) -> FileSystemWriter:
    return FileSystemWriter(directory, single_file_per_rank=True, sync_files=True)


class NvrxSaver:
    """NVRx's own asynchronous writer, called as its documentation does."""

    def __init__(self) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
        from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import CheckpointMetadataCache

        from trainer.checkpoint.nvrx_shims import without_cuda

        without_cuda()
        self._queue = AsyncCallsQueue(cpu_shm_mode=True)
        self._cache = CheckpointMetadataCache()

    def __call__(self, state: dict[str, Any], directory: Path, group: dist.ProcessGroup) -> Pending:
        """Plan, copy, and hand over to the worker. Its collectives run on the default group, not on `group`."""
        del group
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncRequest
        from nvidia_resiliency_ext.checkpointing.async_ckpt.filesystem_async import FileSystemWriterAsync
        from nvidia_resiliency_ext.checkpointing.async_ckpt.state_dict_saver import (
            save_state_dict_async_finalize,
            save_state_dict_async_plan,
        )

        writer = FileSystemWriterAsync(
            str(directory), thread_count=1, use_cached_data_structure=True, use_cpu_shm_for_gpu_tensors=True
        )
        planned = save_state_dict_async_plan(
            state, writer, None, 0, planner=DefaultSavePlanner(), enable_cache=True, metadata_cache=self._cache
        )
        function, preload, arguments = writer.get_save_function_and_args()
        finalize = [lambda: save_state_dict_async_finalize(*planned)]
        request = AsyncRequest(function, arguments, finalize, async_fn_kwargs={}, preload_fn=preload)
        self._queue.schedule_async_request(request)
        return self

    def done(self, *, blocking: bool) -> bool:
        """See `Pending`; a collective."""
        self._queue.maybe_finalize_async_calls(blocking=blocking, no_dist=False)
        return int(self._queue.get_num_unfinalized_calls()) == 0

    def close(self) -> None:
        """End the worker."""
        if self._queue.persistent_caller is not None:
            discard(self._queue)


class ComparisonBackend(Backend):
    """Saves through another library and commits as ours does."""

    def __init__(self, config: CheckpointConfig, paths: RunPaths, ledger: Ledger, writer: str) -> None:
        self._config, self._paths, self._ledger, self._writer = config, paths, ledger, writer
        self._start: Start | None = None
        self._pending: tuple[Pending, Launch, float] | None = None
        self._failures = 0
        self._committed: Position | None = None
        self._error: dict[Position, str] = {}
        self._stop: str | None = None
        self._stop_told = False
        self._commit_s: float | None = None

    @override
    def prepare(self, layout: Layout, ranks_here: int) -> None:
        """Nothing is prepared: that is what is compared."""

    @property
    def landing(self) -> None:
        """None."""

    @override
    def settle(self, decision: Decision, now: Mapping[str, torch.Tensor]) -> None:
        """Nothing to settle."""

    def begin(self, session: Session) -> None:
        """See `Backend`."""
        self._session = session
        self._pending, self._failures, self._stop_told = None, 0, False

    def tell(self, decision: Decision) -> None:
        """See `Backend`."""
        self._session.board.send(decision)

    def _starter(self) -> Start:
        if self._start is None:
            makers: dict[str, Start] = {"sync": save_sync, "dcp": save_dcp}
            self._start = makers[self._writer] if self._writer in makers else NvrxSaver()
        return self._start

    def launch(self, launch: Launch, now: StateNow) -> None:
        """See `Backend`."""
        started = time.monotonic()
        if self._pending is not None:
            self._collect(blocking=True)
        directory = self._paths.checkpoints / launch.position.name
        if self._session.rank == 0:
            # These libraries make it on every rank, so another may have been first.
            directory.mkdir(exist_ok=True)
        try:
            pending = self._starter()({**now.tensors, **now.host}, directory, self._session.group)
        except BaseException as error:  # CheckpointException is a BaseException
            self._failed(launch, error)
            return
        self._pending = (pending, launch, started)
        took_s = time.monotonic() - started
        self._ledger.write(
            Event.SNAPSHOT,
            step=launch.position.step,
            launch_s=took_s,
            blocked_s=took_s,
            bytes=sum(tensor.nbytes for tensor in now.locals.values()),
            stage=self._writer,
        )
        self._collect(blocking=False)

    def _collect(self, *, blocking: bool) -> None:
        if self._pending is None:
            return
        pending, launch, started = self._pending
        try:
            if not pending.done(blocking=blocking):
                return
            self._pending = None
            if self._session.rank == 0:
                self._commit(launch, started)
        except BaseException as error:
            self._pending = None
            self._failed(launch, error)

    def _commit(self, launch: Launch, started: float) -> None:
        directory = self._paths.checkpoints / launch.position.name
        metadata = (directory / METADATA).read_bytes()
        files = {p.name: FileRecord("", [0, p.stat().st_size], []) for p in directory.glob("*.distcp")}
        record = Commit(
            generation=launch.position.name,
            step=launch.position.step,
            attempt=launch.position.attempt,
            origin=launch.origin,
            world_size=self._session.world_size,
            files=files,
            metadata=FileRecord("", [0, len(metadata)], [checksum(metadata)]),
            writer=self._writer,
            wall_s=time.time(),
        )
        seal_generation(self._paths, PosixStorage(), record)
        self._committed, self._failures = launch.position, 0
        self._commit_s = time.monotonic() - started
        self._ledger.write(
            Event.COMMITTED,
            step=record.step,
            generation=record.generation,
            bytes=record.bytes,
            commit_s=self._commit_s,
            end_s=time.monotonic(),
        )
        for name in prune(self._paths, self._config.keep, self._config.keep_spaced):
            self._ledger.write(Event.PRUNED, generation=name, reason="retention")

    def _failed(self, launch: Launch, error: BaseException) -> None:
        if not isinstance(error, (Exception, CheckpointException)):
            raise error
        if isinstance(error, CancelledError):
            raise error
        self._failures += 1
        text = str(error).strip().splitlines() or [repr(error)]
        self._error[launch.position] = text[-1]
        log.error("saving %s with %s failed: %s", launch.position.name, self._writer, error)
        if self._session.rank == 0:
            self._ledger.write(
                Event.SAVE_FAILED,
                step=launch.position.step,
                generation=launch.position.name,
                error=text[-1],
                in_a_row=self._failures,
            )

    def guard(self) -> None:
        """They have copied by the time they return."""

    def poll(self) -> None:
        """See `Backend`."""
        self._collect(blocking=False)
        if self._stop is not None and not self._stop_told:
            self._session.store.set(STOP_KEY, self._stop)
            self._stop_told = True

    def under_way(self) -> bool:
        """See `Asked`."""
        return self._pending is not None

    def persisting(self) -> bool:
        """See `Asked`."""
        return self.under_way()

    @override
    def drain(self, timeout_s: float, *, of: Position | None = None) -> bool:
        """See `Backend`. Unbounded, as these libraries are."""
        self._collect(blocking=True)
        return True

    @override
    def left(self) -> list[Position]:
        """See `Backend`."""
        return []

    @override
    def abandon(self, timeout_s: float) -> bool:
        """See `Backend`."""
        self._pending = None
        return True

    def close(self) -> None:
        """See `Backend`."""
        if isinstance(self._start, NvrxSaver):
            self._start.close()

    def request_stop(self, reason: str) -> None:
        """See `Backend`."""
        self._stop = reason

    def stop_seen(self) -> str | None:
        """See `Backend`."""
        if self._stop is None and self._session.store.check([STOP_KEY]):
            return str(self._session.store.get(STOP_KEY).decode())
        return self._stop

    def busy(self, *, persist: bool, pending: int | None) -> Busy | None:  # noqa: ARG002  no slots to count
        """See `Asked`."""
        if not persist:
            return Busy(f"{self._writer} has no memory tier")
        if self._pending is not None and self._config.overlap == "skip":
            return Busy(f"{self._pending[1].position.name} is still being written")
        return None

    def stage(self) -> str:
        """See `Backend`."""
        return self._writer

    def failures_in_a_row(self) -> int:
        """See `Backend`."""
        return self._failures

    def fate(self, position: Position) -> str:
        """See `Backend`."""
        return "committed" if self._committed == position else self._error.get(position, "not committed")

    @override
    def will_persist(self, step: int) -> bool:
        """See `Backend`: whatever is launched."""
        return True

    def persist_s(self) -> float | None:
        """See `Backend`."""
        return self._commit_s

    def overheads(self) -> dict[str, Any]:
        """See `Backend`."""
        return {"writer": self._writer, "cuda": torch.cuda.is_available()}
