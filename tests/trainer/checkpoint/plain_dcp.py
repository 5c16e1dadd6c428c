"""The hazards of torch.distributed.checkpoint itself, on two ranks: each function says what plain DCP does."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor
from torch.utils.data import DataLoader


class Failing(FileSystemWriter):
    """Rank 1's disk fails: before its first byte."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        if dist.get_rank() == 1:
            raise OSError(28, "No space left on device")
        return super().write_data(plan, planner)


class Slow(FileSystemWriter):
    """Every rank's disk takes its time."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        Path(f"{self.path}.writing.{dist.get_rank()}").touch()
        time.sleep(1.5)
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


def stale(root: Path) -> dict[str, Any]:
    """e5: the process that saves outlives its process group, as after an in-process restart without rank 1."""

    def save(name: str) -> None:
        kind = AsyncCheckpointerType.PROCESS
        finished(dcp.async_save({"w": torch.ones(8)}, checkpoint_id=root / name, async_checkpointer_type=kind))

    save("before")
    dist.barrier()
    dist.destroy_process_group()
    if os.environ["RANK"] == "1":
        return {}
    join("again", ranks=1)
    error = outcome(lambda: save("after"))
    return {"error": error, "committed": [(root / name / ".metadata").exists() for name in ("before", "after")]}


def finished(response: Any) -> None:
    getattr(response, "upload_completion", response).result(timeout=200)


def ghost(root: Path) -> dict[str, Any]:
    """e6, e11: both trainers are killed while their processes save."""
    kind = AsyncCheckpointerType.PROCESS
    dcp.async_save({"w": sharded(1.0)}, storage_writer=Slow(root), async_checkpointer_type=kind)
    while len(list(root.parent.glob(f"{root.name}.writing.*"))) < 2:
        time.sleep(0.01)
    say("ghost", committed=(root / ".metadata").exists())
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def overlap(root: Path) -> dict[str, Any]:
    """e7: four saves of 32 MiB, none waited for, on one group."""
    group = dist.new_group(backend="gloo")
    tensor, before = torch.ones(8 << 20), rss_mib()
    futures = [
        dcp.async_save({"w": tensor}, storage_writer=Slow(root / str(n)), process_group=group) for n in range(4)
    ]
    grown, end = rss_mib() - before, time.monotonic() + 15
    while time.monotonic() < end and not all(future.done() for future in futures):
        time.sleep(0.1)
    return {"grown_mib": grown, "committed": sum((root / str(n) / ".metadata").exists() for n in range(4))}


def rss_mib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) // 1024


def peer(root: Path) -> dict[str, Any]:
    """e14: what a collective does when its peer is stopped; `root` names the signal."""
    if dist.get_rank() == 1:
        say("peer", ready=True)
        os.kill(os.getpid(), signal.Signals[root.name])
    time.sleep(0.5)
    started = time.monotonic()
    error = outcome(lambda: dist.all_reduce(torch.ones(1)))
    return {"error": error, "took_s": time.monotonic() - started}


def sigterm(root: Path) -> dict[str, Any]:
    """e15: a planned stop reaches every process of the pod, loader workers too, before the state is saved."""
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    try:
        for step, _ in enumerate(DataLoader(range(10**6), num_workers=2)):  # type: ignore[arg-type]
            if step == 3:
                say("sigterm", ready=True)
            if stop:
                dcp.save({"w": sharded(1.0)}, checkpoint_id=root)
                return {"error": "no error", "saved": True}
            time.sleep(0.02)
    except BaseException as error:  # of the loader, or of the save whose peer has lost its loader
        return {"error": str(error), "saved": (root / ".metadata").exists()}
    return {}


IN_ONE_PROCESS = (torn, flip, per_rank, mutate, silent, keys, newest)
ALONE = {call.__name__: call for call in (stale, ghost, overlap, sigterm)} | {"SIGSTOP": peer, "SIGKILL": peer}


def say(what: str, **fields: Any) -> None:
    print(json.dumps({"rank": int(os.environ["RANK"]), "what": what, **fields}), flush=True)


def join(prefix: str, timeout_s: float = 60, ranks: int = 2) -> None:
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=30))
    rank, timeout = int(os.environ["RANK"]), timedelta(seconds=timeout_s)
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(prefix, store), rank=rank, world_size=ranks, timeout=timeout
    )


def live(options: dict[str, Any]) -> None:
    """A rank's life: every hazard that leaves the process whole, or the one that `plain` names."""
    torch.set_num_threads(1)
    alone = ALONE.get(options["plain"])
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    join(options["prefix"], options.get("timeout_s", 60))
    for hazard in (alone,) if alone else IN_ONE_PROCESS:
        said = hazard(Path(options["run_dir"]) / (options["plain"] if alone else hazard.__name__))
        say(hazard.__name__, **said)
        if not alone:
            dist.barrier()
    os._exit(0)
