"""In which order the stagers let streams read and write, on streams that a test runs by hand."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import FakeCuda
from two_tensors import NAMES, two_tensors

from trainer.checkpoint import staging
from trainer.checkpoint.backend import SteadfastBackend
from trainer.checkpoint.decisions import Action, Decision
from trainer.checkpoint.staging import Copy, DeviceStager, HostStager

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
LENGTH = 1024
BYTES = 4 * LENGTH
LAYOUT = two_tensors(LENGTH)
ITEMS, END = LAYOUT.items, LAYOUT.slot_bytes


class Rank:
    """The state of a rank, its slots, and the helper thread's part."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.registered = threading.Event()
        self.tensors = {name: torch.full((LENGTH,), 10.0) for name in NAMES}
        self.slots = [torch.zeros(END, dtype=torch.uint8) for _ in range(2)]

    def change(self, name: str, value: float) -> None:
        """The forward pass or the optimizer, on the training stream."""
        self.cuda.do(lambda: self.tensors[name].fill_(value))

    def change_all(self, value: float) -> None:
        for name in NAMES:
            self.change(name, value)

    def held(self, slot: int) -> list[set[float]]:
        """The values in a slot, of each tensor."""
        return [set(LAYOUT.view(item, self.slots[slot]).tolist()) for item in ITEMS]

    def finish(self, *copies: Copy) -> None:
        """The helper thread polls while the GPU works, training first."""
        for _ in range(3):
            for copy in copies:
                copy.advance()
            self.cuda.finish(self.cuda.training)
        assert all(copy.advance() for copy in copies)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    """On a GPU that waits for its orders; copies come in several pieces."""
    monkeypatch.setattr(staging, "CHUNK_BYTES", BYTES // 2)
    return Rank(FakeCuda(monkeypatch))


def all_of(value: float) -> list[set[float]]:
    return [{value}] * len(NAMES)


def host(rank: Rank) -> HostStager:
    rank.registered.set()
    return HostStager(LAYOUT, CPU, rank.registered, 1.0)


def backend_with(rank: Rank, stager: staging.Stager) -> SteadfastBackend:
    backend = SteadfastBackend.__new__(SteadfastBackend)
    backend._layout, backend._device, backend._stager = LAYOUT, CPU, stager
    backend._arena = SimpleNamespace(registered=rank.registered)  # type: ignore[assignment]
    backend._report_prepared = lambda: None  # type: ignore[method-assign]
    return backend


@pytest.mark.parametrize("settled", ["", "device"])
def test_the_optimizer_waits_for_a_host_copy_also_when_auto_settles_meanwhile(rank: Rank, settled: str) -> None:
    backend = backend_with(rank, host(rank))
    assert backend._stager is not None
    copy = backend._stager.launch(rank.slots[0], rank.tensors)
    backend.settle(Decision(5, Action.NONE, settled), rank.tensors)
    backend.guard()
    rank.change_all(20.0)
    rank.finish(copy)
    assert rank.held(0) == all_of(10.0)
    assert isinstance(backend._stager, DeviceStager) == bool(settled)


def test_a_dry_snapshot_does_not_touch_a_real_one(rank: Rank) -> None:
    stager = DeviceStager(LAYOUT, CPU, rank.registered)
    copy = stager.launch(rank.slots[0], rank.tensors)
    rank.change_all(20.0)
    stager.rehearse(rank.tensors)
    rank.registered.set()
    rank.finish(copy)
    assert rank.held(0) == all_of(10.0)


def test_a_snapshot_leaves_the_buffer_before_the_next_enters_though_the_helper_thread_is_late(rank: Rank) -> None:
    rank.registered.set()
    stager = DeviceStager(LAYOUT, CPU, rank.registered)
    first = stager.launch(rank.slots[0], rank.tensors)
    rank.change_all(20.0)
    second = stager.launch(rank.slots[1], rank.tensors)
    rank.change_all(30.0)
    rank.finish(second, first)
    assert (rank.held(0), rank.held(1)) == (all_of(10.0), all_of(20.0))


def test_what_the_gpu_waits_for_the_last_snapshot_counts_as_blocked(rank: Rank) -> None:
    rank.registered.set()
    stager = DeviceStager(LAYOUT, CPU, rank.registered)
    first = stager.launch(rank.slots[0], rank.tensors)
    second = stager.launch(rank.slots[1], rank.tensors)
    rank.finish(first, second)
    assert second.blocked_s() > first.blocked_s()


class RegisteredMeanwhile(threading.Event):
    """An arena whose registration ends while someone waits for it."""

    waited_s: float | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.waited_s = timeout
        self.set()
        return True


def test_the_second_launch_waits_for_the_arena_to_be_registered(rank: Rank) -> None:
    rank.registered = registered = RegisteredMeanwhile()
    stager = DeviceStager(LAYOUT, CPU, registered, 7.0)
    first = stager.launch(rank.slots[0], rank.tensors)
    assert registered.waited_s is None and not first.advance()
    rank.change_all(20.0)
    second = stager.launch(rank.slots[1], rank.tensors)
    assert registered.waited_s == 7.0
    rank.finish(first, second)
    assert (rank.held(0), rank.held(1)) == (all_of(10.0), all_of(20.0))


def test_an_arena_that_is_not_registered_in_time_costs_the_older_snapshot(rank: Rank) -> None:
    stager = DeviceStager(LAYOUT, CPU, rank.registered, 0.0)
    first = stager.launch(rank.slots[0], rank.tensors)
    rank.change_all(20.0)
    second = stager.launch(rank.slots[1], rank.tensors)
    with pytest.raises(RuntimeError, match="not registered"):
        first.advance()
    rank.registered.set()
    rank.finish(second)
    assert (rank.held(0), rank.held(1)) == (all_of(0.0), all_of(20.0))


def test_the_helper_thread_and_a_launch_send_a_snapshot_once(rank: Rank) -> None:
    """A launch comes while the helper thread is half way through."""
    rank.registered.set()
    stager = DeviceStager(LAYOUT, CPU, rank.registered)
    first = stager.launch(rank.slots[0], rank.tensors)
    rank.change_all(20.0)
    launched: list[Any] = []
    launch = threading.Thread(target=lambda: launched.append(stager.launch(rank.slots[1], rank.tensors)))
    sent: list[int] = []

    def on_copy(target: torch.Tensor) -> None:
        if target.untyped_storage().data_ptr() != rank.slots[0].data_ptr():
            return
        sent.append(target.storage_offset())
        if len(sent) == 1:
            launch.start()
            launch.join(0.2)  # as far as it comes meanwhile

    rank.cuda.on_copy = on_copy
    first.advance()
    launch.join(10)
    assert sent == list(range(0, END, staging.CHUNK_BYTES))
    rank.finish(first, *launched)
    assert (rank.held(0), rank.held(1)) == (all_of(10.0), all_of(20.0))


def test_a_snapshot_that_cannot_be_sent_fails_its_own_save(rank: Rank) -> None:
    """CUDA refuses a copy; the launch that had it sent belongs to another save."""
    rank.registered.set()
    stager = DeviceStager(LAYOUT, CPU, rank.registered)
    first = stager.launch(rank.slots[0], rank.tensors)

    def refuse(target: torch.Tensor) -> None:
        if target.untyped_storage().data_ptr() == rank.slots[0].data_ptr():
            raise RuntimeError("CUDA error: invalid argument")

    rank.cuda.on_copy = refuse
    second = stager.launch(rank.slots[1], rank.tensors)
    with pytest.raises(RuntimeError, match="invalid argument"):
        first.advance()
    rank.finish(second)
    assert rank.held(1) == all_of(10.0)


def test_a_restore_takes_the_buffer_from_a_snapshot_that_has_not_left_it(rank: Rank) -> None:
    stager = DeviceStager(LAYOUT, CPU, rank.registered)
    copy = stager.launch(rank.slots[0], rank.tensors)
    rank.slots[1].view(torch.float32).fill_(5.0)
    stager.receive(rank.slots[1], 0, END)
    rank.cuda.finish(*reversed(rank.cuda.streams))
    stager.deliver(rank.tensors)
    rank.registered.set()
    with pytest.raises(RuntimeError, match="a restore"):
        copy.advance()
    rank.cuda.finish()
    assert [set(rank.tensors[name].tolist()) for name in NAMES] == all_of(5.0)
    assert rank.held(0) == all_of(0.0)


def test_the_next_forward_may_change_buffers_while_a_host_copy_runs(rank: Rank) -> None:
    stager = host(rank)
    copy = stager.launch(rank.slots[0], rank.tensors)
    rank.change("buffer.mean", 20.0)
    stager.guard()
    rank.change("model.w", 20.0)
    rank.finish(copy)
    assert rank.held(0) == all_of(10.0)
    assert stager.device_bytes == BYTES


def test_two_host_copies_without_a_step_between_hold_what_they_were_launched_for(rank: Rank) -> None:
    """An evaluation with statistics of its own, and the last save after it."""
    stager = host(rank)
    first = stager.launch(rank.slots[0], rank.tensors)
    rank.change("buffer.mean", 20.0)
    second = stager.launch(rank.slots[1], rank.tensors)
    rank.finish(first, second)
    assert (rank.held(0), rank.held(1)) == ([{10.0}, {10.0}], [{10.0}, {20.0}])
