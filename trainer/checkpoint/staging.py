"""From where training lives into a slot of the arena, without stopping training.

device: one flat buffer in device memory with the layout of the slot takes the snapshot between two steps (12 ms
for 12 GB); a side stream brings it to the host in chunks while training goes on.
host: the side stream copies the state itself, beside the next forward and backward; the GPU waits for it just
before the optimizer changes the state. Buffers, which those change themselves, it takes from copies.
CPU: plain copies.

What others change outside stream order (`step` on the CPU, buffers there, RNG, data position) is copied at launch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch

from trainer.checkpoint.layout import Item, Layout, local, stamp_into
from trainer.checkpoint.state import is_buffer

ROOM = 0.05
CHUNK_BYTES = 32 << 20
"""At a time, so that the loss's own copy to the host gets its turn between two. Divides PINNED_BYTES."""
PINNED_BYTES = 256 << 20
"""Registered at a time, counted from the begin of a slot; CUDA refuses a copy that straddles two registrations."""
REGISTER_TIMEOUT_S = 300.0
"""A launch waits no longer for the arena to be registered."""


class Copy(Protocol):
    """A snapshot on its way into a slot."""

    def advance(self) -> bool:
        """Called by the helper thread again and again; True once the slot holds the whole snapshot."""

    def blocked_s(self) -> float:
        """What the snapshot held up training, known once it is whole."""


class Stager(Protocol):
    """Takes snapshots."""

    name: str
    device_bytes: int

    def launch(self, slot: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Copy:
        """Snapshot the device tensors as they are at this point of the training stream."""

    def guard(self) -> None:
        """Called before the optimizer changes anything."""

    def idle(self) -> bool:
        """Whether no copy is under way."""


def copy_host_state(layout: Layout, slot: torch.Tensor, values: Mapping[str, torch.Tensor]) -> None:
    """Copy host state into a slot. Raises ValueError naming a key that is missing, new, reshaped or recast."""
    items = {item.fqn: item for item in layout.items if not item.on_device}
    if items.keys() != values.keys():
        raise ValueError(f"host state changed its keys: {sorted(items.keys() ^ values.keys())}")
    for fqn, item in items.items():
        check_same(item, values[fqn])
        layout.view(item, slot).copy_(values[fqn])


def check_same(item: Item, tensor: torch.Tensor) -> None:
    """Raises ValueError naming the key."""
    if tuple(tensor.shape) != item.sizes or tensor.dtype != item.dtype:
        raise ValueError(
            f"{item.fqn}: planned as {item.dtype} {item.sizes}, now {tensor.dtype} {tuple(tensor.shape)}"
        )


class CpuCopy:
    """Done at once."""

    def __init__(self, took_s: float) -> None:
        self._took_s = took_s

    def advance(self) -> bool:
        """See `Copy`."""
        return True

    def blocked_s(self) -> float:
        """See `Copy`."""
        return self._took_s


class CpuStager:
    """The same seam with a plain copy."""

    name = "cpu"
    device_bytes = 0

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def launch(self, slot: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Copy:
        """See `Stager`."""
        started = time.perf_counter()
        for item in self._layout.items:
            if item.on_device:
                self._layout.view(item, slot).copy_(tensors[item.fqn])
        return CpuCopy(time.perf_counter() - started)

    def guard(self) -> None:
        """Nothing is under way."""

    def idle(self) -> bool:
        """See `Stager`."""
        return True


class CudaCopy:
    """A copy on the side stream."""

    def __init__(self, launched_s: float, before: torch.cuda.Event, after: torch.cuda.Event) -> None:
        self.launched_s, self.before, self.after = launched_s, before, after
        self.timed = True
        """Whether the two events have been recorded."""
        self.done: torch.cuda.Event | None = None
        self.start: threading.Event | None = None

    def advance(self) -> bool:
        """See `Copy`."""
        return self.done is not None and self.done.query()

    def blocked_s(self) -> float:
        """Host time of the launch, or the GPU's between the two events, whichever is longer."""
        if not self.timed:
            return self.launched_s
        self.after.synchronize()  # over already, or about to be; in the helper thread
        return max(self.launched_s, self.before.elapsed_time(self.after) / 1e3)


class DeviceStager:
    """Snapshot in device memory first.

    There is one buffer, so a snapshot must be on its way to the host before the next may take its place. The
    helper thread sees to that as soon as the arena is registered; if it has not come to it, the next launch does.
    """

    name = "device"

    def __init__(
        self,
        layout: Layout,
        device: torch.device,
        registered: threading.Event,
        timeout_s: float = REGISTER_TIMEOUT_S,
    ) -> None:
        self._layout, self._registered, self._timeout_s = layout, registered, timeout_s
        self._flat = torch.empty(layout.slot_bytes, dtype=torch.uint8, device=device)
        stamp_into(self._flat, layout)
        self._side = torch.cuda.Stream(device=device)
        self._views = {i.fqn: layout.view(i, self._flat) for i in layout.items if i.on_device and i.nbytes}
        self._groups = _by_dtype(self._views)
        self._lock = threading.Lock()
        self._waiting: _DeviceCopy | None = None
        """What is in the buffer alone. Set by the training thread; whoever takes it away holds the lock."""
        self._rehearsed = False
        self.device_bytes = layout.slot_bytes

    def launch(self, slot: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Copy:
        """See `Stager`. Only the second save may find the arena not registered yet, and waits for it."""
        started = time.perf_counter()
        before, after = _timer(), _timer()
        self._rehearsed = True
        if (waiting := self._waiting) is not None:
            self._registered.wait(self._timeout_s)  # without the lock: the helper thread has other things to do
            self.send(waiting)
            self._give_up("the arena is not registered, and the next snapshot needs the device's buffer")
        before.record()  # what the GPU waits for the last snapshot blocks training too
        torch.cuda.current_stream().wait_stream(self._side)
        self._fill(tensors)
        after.record()
        self._waiting = copy = _DeviceCopy(self, slot, time.perf_counter() - started, before, after)
        return copy

    def _fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        for names in self._groups:
            torch._foreach_copy_([self._views[fqn] for fqn in names], [tensors[fqn] for fqn in names])

    def rehearse(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """A dry snapshot, once: what a first use costs is paid before the first save."""
        if not self._rehearsed:
            self._rehearsed = True
            with torch.no_grad():
                self._fill(tensors)

    def guard(self) -> None:
        """The state itself is not read any more."""

    def idle(self) -> bool:
        """See `Stager`."""
        return bool(self._side.query())

    def receive(self, slot: torch.Tensor, start: int, end: int) -> None:
        """A restore: bytes of the slot are verified and may go to the device, though not yet into the model."""
        self._give_up("a restore needs the device's buffer")
        with torch.cuda.device(self._flat.device), torch.cuda.stream(self._side):
            for at, upto in pieces(start, end, CHUNK_BYTES):
                self._flat[at:upto].copy_(slot[at:upto], non_blocking=True)

    def deliver(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """All ranks agree: into the model, from device memory."""
        torch.cuda.current_stream().wait_stream(self._side)
        with torch.no_grad():
            for names in self._groups:
                torch._foreach_copy_([tensors[fqn] for fqn in names], [self._views[fqn] for fqn in names])

    def send(self, copy: _DeviceCopy) -> None:
        """Start a snapshot's way to the host, once, whoever asks; not as long as the arena is not registered."""
        with self._lock:
            if copy is not self._waiting or not self._registered.is_set():
                return
            try:
                copy.done = self._empty_into(copy.slot, copy.after)
            except RuntimeError as error:  # of this snapshot: not for a training thread that takes the next
                copy.failed = str(error)
            self._waiting = None

    def _empty_into(self, slot: torch.Tensor, after: torch.cuda.Event) -> torch.cuda.Event:
        with torch.cuda.device(self._flat.device), torch.cuda.stream(self._side):
            self._side.wait_event(after)
            for start, end in self._layout.device_spans:
                for at, upto in pieces(start, end, CHUNK_BYTES):
                    slot[at:upto].copy_(self._flat[at:upto], non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        return done

    def _give_up(self, why: str) -> None:
        """What is in the buffer alone will be overwritten: its save must fail, not take what comes."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.failed = why
                self._side.wait_event(self._waiting.after)  # it may be still on its way into the buffer
                self._waiting = None


class _DeviceCopy(CudaCopy):
    def __init__(
        self,
        stager: DeviceStager,
        slot: torch.Tensor,
        launched_s: float,
        before: torch.cuda.Event,
        after: torch.cuda.Event,
    ) -> None:
        super().__init__(launched_s, before, after)
        self._stager, self.slot = stager, slot
        self.failed: str | None = None

    def advance(self) -> bool:
        """See `Copy`. Raises RuntimeError if the snapshot is lost."""
        if self.done is None:
            self._stager.send(self)
        if self.failed is not None:
            raise RuntimeError(self.failed)
        return super().advance()


class HostStager:
    """Straight into the arena, overlapped with the next forward and backward."""

    name = "host"

    def __init__(
        self,
        layout: Layout,
        device: torch.device,
        registered: threading.Event,
        timeout_s: float = REGISTER_TIMEOUT_S,
    ) -> None:
        self._layout, self._registered, self._timeout_s = layout, registered, timeout_s
        self._side = torch.cuda.Stream(device=device)
        self._running: CudaCopy | None = None
        self._apart = {
            item.fqn: torch.empty(item.sizes, dtype=item.dtype, device=device)
            for item in layout.items
            if item.on_device and item.nbytes and is_buffer(item.fqn)
        }
        """Copies of what the next forward may change, small: `guard` would come too late for it."""
        self.device_bytes = sum(copy.nbytes for copy in self._apart.values())

    def launch(self, slot: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Copy:
        """See `Stager`. Only the first save may find the arena not registered yet, and waits for it."""
        started = time.perf_counter()
        self._registered.wait(self._timeout_s)
        self.guard()  # of an earlier copy that no optimizer step has followed: it may still read what lies apart
        for fqn, apart in self._apart.items():
            apart.copy_(tensors[fqn], non_blocking=True)
        steady = {**tensors, **self._apart}
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for item in self._layout.items:
                if item.on_device and item.nbytes:
                    for in_slot, in_tensor in matching_pieces(self._layout, item, slot, steady[item.fqn]):
                        in_slot.copy_(in_tensor, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        copy = CudaCopy(time.perf_counter() - started, _timer(), _timer())
        copy.done, copy.timed = done, False
        self._running = copy
        return copy

    def idle(self) -> bool:
        """See `Stager`."""
        return bool(self._side.query())

    def guard(self) -> None:
        """The GPU waits for the copy; two timed events tell how long."""
        if self._running is not None:
            copy, self._running = self._running, None
            assert copy.done is not None
            copy.before.record()
            torch.cuda.current_stream().wait_event(copy.done)
            copy.after.record()
            copy.timed = True


def pieces(start: int, end: int, unit: int) -> Iterator[tuple[int, int]]:
    """The range from `start` to `end`, cut at multiples of `unit`."""
    while start < end:
        upto = min(end, (start // unit + 1) * unit)
        yield start, upto
        start = upto


def matching_pieces(
    layout: Layout, item: Item, slot: torch.Tensor, tensor: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """An item in the slot and on the device as pairs to copy, none across two registrations."""
    first, last = item.data_at // PINNED_BYTES, (item.data_at + max(item.nbytes, 1) - 1) // PINNED_BYTES
    if first == last:
        yield layout.view(item, slot), tensor
        return
    flat = tensor.view(-1).view(torch.uint8)
    for start, end in pieces(item.data_at, item.data_at + item.nbytes, PINNED_BYTES):
        yield slot[start:end], flat[start - item.data_at : end - item.data_at]


def _by_dtype(views: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Names by dtype: a multi-tensor copy takes its fast path for one dtype only."""
    groups: dict[torch.dtype, list[str]] = {}
    for fqn, view in views.items():
        groups.setdefault(view.dtype, []).append(fqn)
    return list(groups.values())


def leaves_room(slot_bytes: int, device: torch.device) -> bool:
    """Whether a device-side snapshot fits: 5 % of the memory stay free beyond the peak so far.

    Asked after a few steps: what the allocator has reserved by then is the peak, and no longer free.
    """
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return free_bytes - slot_bytes >= ROOM * total_bytes


def _timer() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def locals_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """This rank's parts, sharing storage."""
    return {fqn: local(tensor) for fqn, tensor in tensors.items()}
