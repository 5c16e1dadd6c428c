"""In which order the stagers let streams read and write, on streams that a test runs by hand."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeCuda

from trainer.checkpoint import staging
from trainer.checkpoint.backend import SteadfastBackend
from trainer.checkpoint.decisions import Action, Decision
from trainer.checkpoint.layout import Item, Layout, Part
from trainer.checkpoint.staging import Copy, DeviceStager, HostStager

pytestmark = pytest.mark.unit

CPU = torch.device("cpu")
LENGTH = 1024
BYTES = 4 * LENGTH
NAMES = ("model.w", "buffer.mean")
ITEMS = tuple(
    Item(name, (0,), (LENGTH,), torch.float32, at * BYTES, True, Part.OWN) for at, name in enumerate(NAMES)
)
END = BYTES * len(NAMES)
LAYOUT = Layout(0, 1, ITEMS, (), [0, END, END, END, END], "digest", None, b"")  # type: ignore[arg-type]


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
