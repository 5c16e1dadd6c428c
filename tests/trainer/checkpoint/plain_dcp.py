"""The hazards of torch.distributed.checkpoint itself, on two ranks: each order says what plain DCP does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor


class Failing(FileSystemWriter):
    """Rank 1's disk fails: before its first byte."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        if dist.get_rank() == 1:
            raise OSError(28, "No space left on device")
        return super().write_data(plan, planner)


def sharded(value: float, length: int = 4) -> torch.Tensor:
    return distribute_tensor(torch.full((length,), value), DeviceMesh("cpu", [0, 1]), [Shard(0)])


def outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except BaseException as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    return "no error"


def torn(root: Path) -> dict[str, Any]:
    """e1b: a replay overwrites a complete checkpoint and dies before one rank has written."""
    dcp.save({"w": sharded(1.0)}, checkpoint_id=root)
    outcome(lambda: dcp.save({"w": sharded(2.0)}, storage_writer=Failing(root)))
    loaded = {"w": sharded(0.0)}
    error = outcome(lambda: dcp.load(loaded, checkpoint_id=root))
    return {"error": error, "loaded": loaded["w"].full_tensor().tolist()}


def flip(root: Path) -> dict[str, Any]:
    """e2: one flipped byte."""
    dcp.save({"w": sharded(1.0, 4096)}, checkpoint_id=root)
    dist.barrier()
    if dist.get_rank() == 0:
        path = sorted(root.glob("*.distcp"))[1]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x40
        path.write_bytes(data)
    dist.barrier()
    loaded = {"w": sharded(0.0, 4096)}
    error = outcome(lambda: dcp.load(loaded, checkpoint_id=root))
    return {"error": error, "wrong": int((loaded["w"].full_tensor() != 1.0).sum())}


def per_rank(root: Path) -> dict[str, Any]:
    """e3: each rank's own value under one name."""
    dcp.save({"rng": torch.tensor([100 + dist.get_rank()])}, checkpoint_id=root)
    loaded = {"rng": torch.zeros(1, dtype=torch.long)}
    dcp.load(loaded, checkpoint_id=root)
    everyone: list[Any] = [None, None]
    dist.all_gather_object(everyone, int(loaded["rng"]))
    return {"loaded": everyone}


def mutate(root: Path) -> dict[str, Any]:
    """e4: the state changes while an asynchronous save is under way (repaired: pytorch#144657)."""
    tensor = torch.ones(1 << 18)
    future = dcp.async_save({"w": tensor}, checkpoint_id=root)
    tensor.fill_(7.0)
    future.result()
    loaded = {"w": torch.zeros(1 << 18)}
    dcp.load(loaded, checkpoint_id=root)
    return {"loaded": loaded["w"].unique().tolist()}


def silent(root: Path) -> dict[str, Any]:
    """e10: an asynchronous save fails and nobody reads its future."""
    future = dcp.async_save({"w": sharded(1.0)}, storage_writer=Failing(root))
    end = time.monotonic() + 20
    while not future.done() and time.monotonic() < end:
        time.sleep(0.01)
    return {"raised": "nothing", "held": future.exception() is not None, "marker": (root / ".metadata").exists()}


def keys(root: Path) -> dict[str, Any]:
    """e12: an extra key and another dtype."""
    dcp.save({"a": torch.full((4,), 1.5), "b": torch.ones(4)}, checkpoint_id=root)
    cast = {"a": torch.zeros(4, dtype=torch.bfloat16)}
    return {"extra": outcome(lambda: dcp.load({"a": torch.zeros(4)}, checkpoint_id=root)),
            "cast": outcome(lambda: dcp.load(cast, checkpoint_id=root)), "value": float(cast["a"][0])}  # fmt: skip


def newest(root: Path) -> dict[str, Any]:
    """Order by step number: after a roll-back the abandoned future wins."""
    for step in (80, 100, 90):  # 90 was saved last, by the attempt that rolled back to 80
        dcp.save({"w": sharded(float(step))}, checkpoint_id=root / f"step-{step}")
    return {"newest": max(int(path.name[5:]) for path in root.iterdir())}


def live(options: dict[str, Any]) -> None:
    """A rank's life."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=30))
    dist.init_process_group(
        "gloo", store=dist.PrefixStore("plain", store), rank=int(os.environ["RANK"]), world_size=2
    )
    for hazard in (torn, flip, per_rank, mutate, silent, keys, newest):
        said = hazard(Path(options["run_dir"]) / hazard.__name__)
        print(json.dumps({"rank": dist.get_rank(), "what": hazard.__name__, **said}), flush=True)
        dist.barrier()
    os._exit(0)
