"""Control traffic: a store outside the ranks and a gloo group of its own. Nothing of it on the default group."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroup, Store

from trainer.timeouts import Timeouts

ROLL_CALL_S = 0.25
SHORTEST_WAIT_S = 0.01
"""Stores count in milliseconds, and to a `HashStore` none is no limit."""


@dataclass
class Control:
    """What ranks of one attempt agree over (`trainer.checkpoint.Control`)."""

    rank: int
    world_size: int
    group: ProcessGroup
    store: Store
    timeout_s: float


def store_endpoint() -> tuple[str, int]:
    """Where the store outside the ranks listens: the control pod's, told by `trainer.launch`, else torchrun's."""
    endpoint = os.environ.get("STEADFAST_STORE_ENDPOINT")
    if endpoint is None:
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def connect_store(timeout_s: float) -> TCPStore:
    """A client of that store. Raises torch.distributed.DistStoreError when it cannot be reached in time."""
    host, port = store_endpoint()
    return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def cycle_prefix() -> str:
    """Unique for each start of the ranks by a launcher, since a store may outlive several starts."""
    env = os.environ
    parts = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return "steadfast/" + "/".join(env.get(part, "-") for part in parts)


def join(*, iteration: int, timeouts: Timeouts, device: torch.device) -> Control:
    """Form the groups of one attempt; `iteration` counts in-process restarts.

    Waits (at most `start_s`) until all ranks have come, so that the first collective's timeout does not pay for
    slow imports. Raises torch.distributed.DistStoreError naming the missing ranks.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    base = connect_store(timeouts.start_s)
    store = PrefixStore(f"{cycle_prefix()}/{iteration}", base)
    roll_call(store, "join", rank, world_size, timeouts.start_s)
    collective = timedelta(seconds=timeouts.collective_s)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore("default", store),
        rank=rank,
        world_size=world_size,
        timeout=collective,
        device_id=device if device.type == "cuda" else None,
    )
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeouts.start_s))
    return Control(rank, world_size, group, PrefixStore("control", store), timeouts.collective_s)


def roll_call(store: Store, name: str, rank: int, world_size: int, timeout_s: float) -> None:
    """Wait for every rank at `name`. Raises TimeoutError that names who did not come.

    In short waits: an in-process restart raises in this thread, which no wait inside the store would let in.
    """
    store.set(f"{name}/{rank}", "here")
    keys = [f"{name}/{other}" for other in range(world_size)]
    end_s = time.monotonic() + timeout_s
    while (left_s := end_s - time.monotonic()) > 0:
        with suppress(dist.DistStoreError):
            store.wait(keys, timedelta(seconds=min(max(left_s, SHORTEST_WAIT_S), ROLL_CALL_S)))
            return
    missing = [other for other, key in enumerate(keys) if not store.check([key])]
    raise TimeoutError(f"{name}: no sign of rank(s) {missing} after {timeout_s:g} s")
