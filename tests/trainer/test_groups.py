"""Two ranks as processes: what one lets go of after an error of its own is seen by the other in its collective."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from trainer.resilience.control import roll_call
from trainer.resilience.groups import let_go

TIMEOUT_S = 30.0
WAITS_S = 8.0
"""For which the rank that raised lives on, as one that waits for the next attempt."""


def train(rank: int, store: dist.Store) -> None:
    """A step as a rank does it: sharded model, clipped gradients, AdamW; they leave meshes in DTensor's caches."""
    from torch.distributed.fsdp import fully_shard

    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timeout)
    group = dist.new_group(backend="gloo", timeout=timeout)
    model = torch.nn.Linear(4, 4)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if rank == 1:
        raise ValueError("of this rank")
    dist.all_gather_object([None, None], rank, group=group)


def live(rank: int, port: int, clean: bool) -> None:
    """One rank; says when it has let go, or has seen that the other did."""
    store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=TIMEOUT_S))
    try:
        train(rank, store)
    except ValueError:
        dist.destroy_process_group()
        if clean:
            let_go(sys.exc_info()[1])
        else:
            gc.collect()
        print(time.monotonic(), flush=True)
        time.sleep(WAITS_S)
    except RuntimeError:
        print(time.monotonic(), flush=True)


@pytest.mark.integration
@pytest.mark.parametrize("clean", [True, False])
def test_peers_see_that_a_rank_has_let_go_of_its_groups(clean: bool) -> None:
    """Once the second fails, `trainer.resilience.groups` has had its day."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=TIMEOUT_S), wait_for_workers=False)
    command = [sys.executable, __file__, str(store.port), str(int(clean))]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for rank in range(2)
    ]
    seen_s, let_go_s = (float(process.communicate(timeout=90)[0]) for process in ranks)
    assert (seen_s - let_go_s < WAITS_S / 2) == clean


@pytest.mark.unit
def test_a_roll_call_names_who_did_not_come() -> None:
    store = dist.HashStore()
    store.set("join/2", "here")
    with pytest.raises(TimeoutError, match=r"join: no sign of rank\(s\) \[1, 3\] after 0\.6 s"):
        roll_call(store, "join", 0, 4, 0.6)
    store.set("join/1", "here")
    store.set("join/3", "here")
    roll_call(store, "join", 0, 4, 0.6)


@pytest.mark.unit
def test_a_roll_call_with_less_than_a_millisecond_left_ends() -> None:
    """To a `HashStore` a wait of 0 ms, which that became, is one without end."""

    def call() -> None:
        with pytest.raises(TimeoutError):
            roll_call(dist.HashStore(), "join", 0, 2, 0.0005)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


if __name__ == "__main__":
    live(int(sys.argv[3]), int(sys.argv[1]), sys.argv[2] == "1")
