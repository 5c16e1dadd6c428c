"""The stagers' order of reading and writing on a GPU's own streams, which test_staging_order.py has emulated.

`python tests/gpu/staging_order.py --out DIR` writes `staging.json`; 1 when a snapshot is not the state at its
launch. Copies of some GiB take long enough for a write that does not wait to be seen: `unguarded` leaves the guard
out, and must be found torn, or none of these checks would say anything.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import torch
from two_tensors import NAMES, two_tensors

from trainer.checkpoint.backend import SteadfastBackend
from trainer.checkpoint.decisions import Action, Decision
from trainer.checkpoint.staging import Copy, DeviceStager, HostStager, Stager

LENGTH = 512 << 20
LAYOUT = two_tensors(LENGTH)
ITEMS, END = LAYOUT.items, LAYOUT.slot_bytes
LIMIT_S = 60.0
Held = list[list[float]]


class Rank:
    """4 GiB of state and two registered slots."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", 0)
        self.registered = threading.Event()
        self.registered.set()
        self.tensors = {name: torch.empty(LENGTH, device=self.device) for name in NAMES}
        self.slots = [torch.empty(END, dtype=torch.uint8, pin_memory=True) for _ in range(2)]

    def begin(self) -> None:
        """State of tens, empty slots, nothing under way."""
        torch.cuda.synchronize()
        self.change(10.0)
        for slot in self.slots:
            slot.zero_()
        torch.cuda.synchronize()

    def change(self, value: float, *names: str) -> None:
        """The optimizer or a forward pass, on the training stream."""
        for name in names or NAMES:
            self.tensors[name].fill_(value)

    def held(self, slot: int) -> Held:
        """Least and greatest value of each tensor in a slot."""
        views = [LAYOUT.view(item, self.slots[slot]) for item in ITEMS]
        return [[float(view.min()), float(view.max())] for view in views]


def finish(*copies: Copy) -> None:
    """The helper thread's part."""
    end_s = time.monotonic() + LIMIT_S
    while not all(copy.advance() for copy in copies):
        if time.monotonic() > end_s:
            raise TimeoutError("a copy does not end")
        time.sleep(0.001)


def all_of(value: float) -> Held:
    return [[value, value]] * len(NAMES)


def host_guarded(rank: Rank) -> bool:
    """The optimizer waits for a host copy."""
    return _host(rank, lambda stager: stager.guard()) == all_of(10.0)


def unguarded(rank: Rank) -> bool:
    """It must be seen when it does not."""
    return _host(rank, lambda _: None) != all_of(10.0)


def auto_settles_meanwhile(rank: Rank) -> bool:
    """Also when `auto` takes the device while the host copy is under way."""

    def settle(stager: Stager) -> None:
        backend = SteadfastBackend.__new__(SteadfastBackend)
        backend._layout, backend._device, backend._stager = LAYOUT, rank.device, stager
        backend._arena = SimpleNamespace(registered=rank.registered)  # type: ignore[assignment]
        backend._report_prepared = lambda: None  # type: ignore[method-assign]
        backend.settle(Decision(5, Action.NONE, "device"), rank.tensors)
        backend.guard()

    return _host(rank, settle) == all_of(10.0)


def _host(rank: Rank, before_optimizer: Callable[[Stager], None]) -> Held:
    stager = HostStager(LAYOUT, rank.device, rank.registered)
    copy = stager.launch(rank.slots[0], rank.tensors)
    before_optimizer(stager)
    rank.change(20.0)
    finish(copy)
    return rank.held(0)


def buffers_change_under_a_host_copy(rank: Rank) -> bool:
    """The next forward changes a buffer while the copy runs."""
    stager = HostStager(LAYOUT, rank.device, rank.registered)
    copy = stager.launch(rank.slots[0], rank.tensors)
    rank.change(20.0, "buffer.mean")
    stager.guard()
    rank.change(20.0, "model.w")
    finish(copy)
    return rank.held(0) == all_of(10.0)


def the_helper_is_late(rank: Rank) -> bool:
    """Two device snapshots in a row, the first not sent before the second is taken; its wait counts as blocked."""
    stager = DeviceStager(LAYOUT, rank.device, rank.registered)
    first = stager.launch(rank.slots[0], rank.tensors)
    rank.change(20.0)
    second = stager.launch(rank.slots[1], rank.tensors)
    rank.change(30.0)
    finish(second, first)
    waited = second.blocked_s() > 5 * first.blocked_s()
    print(f"  blocked {first.blocked_s():.4f} s, then {second.blocked_s():.4f} s", flush=True)
    return waited and (rank.held(0), rank.held(1)) == (all_of(10.0), all_of(20.0))


def a_rehearsal_between(rank: Rank) -> bool:
    """A dry snapshot leaves a real one alone."""
    rank.registered.clear()
    stager = DeviceStager(LAYOUT, rank.device, rank.registered)
    copy = stager.launch(rank.slots[0], rank.tensors)
    rank.change(20.0)
    stager.rehearse(rank.tensors)
    rank.registered.set()
    finish(copy)
    return rank.held(0) == all_of(10.0)


def a_restore_takes_the_buffer(rank: Rank) -> bool:
    """The snapshot that was in it fails; the model gets what was read."""
    rank.registered.clear()
    stager = DeviceStager(LAYOUT, rank.device, rank.registered)
    copy = stager.launch(rank.slots[0], rank.tensors)
    rank.slots[1].view(torch.float32).fill_(5.0)
    stager.receive(rank.slots[1], 0, END)
    stager.deliver(rank.tensors)
    rank.registered.set()
    try:
        copy.advance()
    except RuntimeError:
        torch.cuda.synchronize()
        return all(bool((tensor == 5.0).all()) for tensor in rank.tensors.values())
    return False


CHECKS: tuple[Callable[[Rank], bool], ...] = (
    host_guarded,
    unguarded,
    auto_settles_meanwhile,
    buffers_change_under_a_host_copy,
    the_helper_is_late,
    a_rehearsal_between,
    a_restore_takes_the_buffer,
)


def main() -> int:
    """Every check `--repeats` times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rank = Rank()
    results: dict[str, Any] = {}
    for check in CHECKS:
        good = 0
        for _ in range(args.repeats):
            rank.begin()
            with torch.no_grad():
                good += check(rank)
        results[check.__name__] = f"{good}/{args.repeats}"
        print(check.__name__, results[check.__name__], flush=True)
    name = torch.cuda.get_device_name()
    (args.out / "staging.json").write_text(
        json.dumps({"device": name, "torch": torch.__version__, "bytes": END, **results}, indent=1)
    )
    return 0 if all(result == f"{args.repeats}/{args.repeats}" for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
