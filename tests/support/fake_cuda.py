"""CUDA's streams and events on a CPU: what is queued runs when a test says so, in the order that it chooses.

Enough to run `trainer.checkpoint.staging` as it is. Streams are in order in themselves and know of each other by
events alone, as on a GPU; copies are queued on the calling thread's stream. A host that waits for a GPU that has
not been told to run is a failure: nothing that a test calls may synchronise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch


class FakeEvent:
    """Done once the stream that recorded it has come there; waiting for one that was never recorded is no wait."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.recorded = self.done = False
        self.at = 0
        """How many operations the GPU had done by then."""

    def record(self, stream: FakeStream | None = None) -> None:
        self.recorded, self.done = True, False
        (stream or self._cuda.current()).queue.append(Operation(self._happen))

    def _happen(self) -> None:
        self.done, self.at = True, self._cuda.operations

    def query(self) -> bool:
        return self.done or not self.recorded

    def synchronize(self) -> None:
        assert self.query(), "the host waits for the GPU"

    def elapsed_time(self, end: FakeEvent) -> float:
        """In operations, not milliseconds."""
        assert self.done and end.done
        return float(end.at - self.at)


@dataclass(frozen=True)
class Operation:
    """What a stream does next, once it may."""

    run: Callable[[], None]
    ready: Callable[[], bool] = lambda: True


@dataclass(eq=False)
class FakeStream:
    """Operations in order."""

    cuda: FakeCuda
    queue: list[Operation] = field(default_factory=list)

    def wait_event(self, event: FakeEvent) -> None:
        self.queue.append(Operation(lambda: None, event.query))

    def wait_stream(self, other: FakeStream) -> None:
        event = FakeEvent(self.cuda)
        event.record(other)
        self.wait_event(event)

    def query(self) -> bool:
        return not self.queue

    def run(self) -> None:
        """As far as it comes without the others."""
        while self.queue and self.queue[0].ready():
            self.cuda.operations += 1
            self.queue.pop(0).run()


class FakeCuda:
    """One GPU. `training` is the default stream."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.operations = 0
        self.training = FakeStream(self)
        self.streams = [self.training]
        self._local = threading.local()
        self.on_copy: Callable[[torch.Tensor], None] = lambda target: None
        """Called, by the host thread that queues it, with the target of every copy."""
        self._copy = torch.Tensor.copy_
        self._patch(patch)

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        def copy(target: torch.Tensor, source: torch.Tensor, **_: Any) -> torch.Tensor:
            self.on_copy(target)
            self.do(lambda: self._copy(target, source))
            return target

        def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
            for target, source in zip(targets, sources, strict=True):
                copy(target, source)

        patch.setattr(torch.cuda, "Event", lambda enable_timing=False: FakeEvent(self))
        patch.setattr(torch.cuda, "Stream", self._new_stream)
        patch.setattr(torch.cuda, "current_stream", self.current)
        patch.setattr(torch.cuda, "stream", self._entered)
        patch.setattr(torch.cuda, "device", self._entered)
        patch.setattr(torch.Tensor, "copy_", copy)
        patch.setattr(torch, "_foreach_copy_", copy_all)

    def _new_stream(self, device: torch.device | None = None) -> FakeStream:
        self.streams.append(FakeStream(self))
        return self.streams[-1]

    def current(self) -> FakeStream:
        """Of this thread."""
        return getattr(self._local, "stream", self.training)

    @contextmanager
    def _entered(self, what: FakeStream | torch.device) -> Iterator[None]:
        before = self.current()
        self._local.stream = what if isinstance(what, FakeStream) else before
        try:
            yield
        finally:
            self._local.stream = before

    def do(self, work: Callable[[], Any]) -> None:
        """Queue some work on this thread's stream."""
        self.current().queue.append(Operation(work))

    def finish(self, *first: FakeStream) -> None:
        """Run everything; `first` gets as far as it comes before the others begin."""
        streams = [*first, *(stream for stream in self.streams if stream not in first)]
        while any(stream.queue for stream in streams):
            before = self.operations
            for stream in streams:
                stream.run()
            assert self.operations > before, "the streams wait for each other"
