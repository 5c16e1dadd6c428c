"""Slow ranks are found by their own time."""

import time

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

from trainer.resilience.pace import WINDOW_STEPS, Pace, Slow, Stopwatch

pytestmark = pytest.mark.unit


class Fixed(Stopwatch):
    """Own time as given."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds

    def take_s(self) -> float:
        return self.seconds.pop(0)


def run(times: list[list[float]]) -> list[Slow]:
    """`times[window][rank]`; the last rank publishes last, rank 0 looks after every window."""
    store, world_size = HashStore(), len(times[0])
    ranks = [
        Pace(Fixed([window[r] for window in times]), store, rank=r, world_size=world_size, factor=2.0, windows=2)
        for r in range(world_size)
    ]
    found: list[Slow] = []
    for window in range(1, len(times) + 1):
        for pace in reversed(ranks):
            found += pace.after_step(window * WINDOW_STEPS)
    return found


def test_a_rank_is_slow_after_as_many_windows_as_set() -> None:
    found = run([[1.0, 1.0, 3.0]] * 3)
    assert [(slow.rank, slow.windows) for slow in found] == [(2, 2), (2, 3)]
    assert found[0].factor == pytest.approx(3.0)


def test_a_good_window_starts_the_count_again() -> None:
    assert run([[1.0, 3.0], [1.0, 1.0], [1.0, 3.0]]) == []


def test_rank_0_may_be_the_slow_one() -> None:
    assert {slow.rank for slow in run([[5.0, 1.0]] * 2)} == {0}


def test_between_windows_nothing_is_written() -> None:
    store = HashStore()
    pace = Pace(Fixed([]), store, rank=0, world_size=1, factor=2.0, windows=1)
    assert list(pace.after_step(WINDOW_STEPS + 1)) == [] and store.num_keys() == 0


class Sleepy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.05)
        return x


def test_forward_counts_and_waiting_does_not() -> None:
    blocks = nn.ModuleList([Sleepy(), Sleepy()])
    watch = Stopwatch(blocks, torch.device("cpu"))
    for block in blocks:
        block(torch.ones(1))
    time.sleep(1.0)
    assert 0.1 <= watch.take_s() < 1.0
    with torch.no_grad():  # an evaluation
        blocks[0](torch.ones(1))
    assert watch.take_s() == 0.0
