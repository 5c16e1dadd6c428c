"""How long a restore takes: from the arena in the same and in a new process, from storage, and by `dcp.load`.

    python tests/gpu/restore_times.py --out results               1 B parameters, 12 bytes each, on one GPU
    python tests/gpu/restore_times.py --out results --quick       small, on CPU

The parent starts one process after another on the same run directory: one saves and is killed, as a fault would
kill it; the next restores from the arena that it left, then again in the same process, then from storage, then
with `dcp.load`. Every restored state is compared with the fingerprint of the one saved.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_checkpoint as bench
import torch
import torch.distributed as dist

from trainer.checkpoint import CheckpointEngine, PlainControl
from trainer.checkpoint.layout import local
from trainer.config import CheckpointConfig
from trainer.events import Ledger, read_ledger
from trainer.paths import RunPaths


class Process:
    """One life of the trainer."""

    def __init__(self, options: Any, started_s: float) -> None:
        self.options, self.started_s = options, started_s
        harness = bench.Bench(options)
        self.device, self.training, self.store = harness.device, harness.training, harness.store
        self.paths = RunPaths(Path(options.work) / "run")
        self.paths.make()
        self.built_s = time.time() - started_s
        self.control = 0
        self.ledger = Ledger(self.paths.events, "rank-00000", pod="bench", rank=0)
        self.engine = CheckpointEngine(
            config=CheckpointConfig(
                persist_every=2, stage=options.stage, host_slots=options.host_slots, max_host_fraction=0.9
            ),
            paths=self.paths,
            shm=Path(options.shm),
            run="restore",
            pod="bench",
            ledger=self.ledger,
            device=self.device,
        )

    def open(self) -> tuple[float, str]:
        """Seconds and tier of an `open`, the state in place at its end."""
        self.control += 1
        name = f"control.{os.getpid()}.{self.control}"
        control = PlainControl.make(self.store, name, 120)
        started = time.perf_counter()
        restored = self.engine.open(control, self.training.state)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started, restored.tier

    def train(self, steps: int) -> None:
        for _ in range(steps):
            number = self.training.step_number + 1
            self.engine.decide(number)
            self.training.forward_backward()
            self.engine.before_optimizer_step()
            self.training.optimizer.step()
            self.training.optimizer.zero_grad(set_to_none=True)
            self.training.step_number = number
            self.engine.after_step(number)

    def fingerprint(self) -> list[int]:
        return self.training.fingerprint().tolist()


def save_and_die(process: Process) -> None:
    """Leaves a committed generation, an arena and the fingerprint."""
    process.open()
    process.train(2)
    process.engine._backend.drain(300)
    path = Path(process.options.work) / "fingerprint.json"
    path.write_text(json.dumps(process.fingerprint()))
    os.kill(os.getpid(), signal.SIGKILL)


def restore(process: Process) -> None:
    """Every way, one after another."""
    work = Path(process.options.work)
    saved = json.loads((work / "fingerprint.json").read_text())
    nbytes = sum(local(t).nbytes for t in process.training.state.device_tensors().values())
    rows: list[dict[str, Any]] = []

    def measure(name: str, call: Callable[[], tuple[float, str]]) -> None:
        with torch.no_grad():
            for tensor in process.training.state.device_tensors().values():
                local(tensor).zero_()
        took_s, tier = call()
        events = [e for e in read_ledger(process.paths.events) if e["event"] == "restored"]
        last = max(events, key=lambda e: e["mono_s"])
        equal = process.fingerprint() == saved
        rows.append({"way": name, "seconds": took_s, "tier": tier, "gb_s": nbytes / took_s / 1e9, "equal": equal})
        if "dcp" not in name:
            rows[-1] |= {key: last[key] for key in ("verify_s", "apply_s", "plan_s", "prepare_s") if key in last}
        print(json.dumps(rows[-1]), flush=True)

    def again() -> tuple[float, str]:
        process.engine.abort()
        return process.open()

    def from_storage() -> tuple[float, str]:
        process.engine.abort()
        for record in Path(process.options.shm).rglob("*.slot*.json"):
            record.unlink()
        return process.open()

    measure("arena, new process, not pinned", process.open)
    registered = process.engine._backend._arena.registered  # type: ignore[attr-defined]
    registered.wait(300)
    measure("arena, same process, pinned", again)
    measure("arena, same process, pinned, again", again)
    measure("storage (written past the page cache)", from_storage)
    measure("storage (page cache)", from_storage)
    measure("dcp.load (page cache)", lambda: dcp_load(process))
    result = {"bytes": nbytes, "imports_and_build_s": process.built_s, "rows": rows, "torch": torch.__version__}
    out = Path(process.options.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "restore_times.json").write_text(json.dumps(result, indent=1))
    process.engine.close()
    os._exit(0)


def dcp_load(process: Process) -> tuple[float, str]:
    """Plain torch, from the same files."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    newest = sorted(process.paths.checkpoints.glob("step-*"))[-1]
    started = time.perf_counter()
    load(process.training.state.device_tensors(), storage_reader=FileSystemReader(newest))
    if process.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, "storage"


def main() -> None:
    options = bench.parse()
    options.stage = os.environ.get("STAGE", "device")
    if life := os.environ.get("LIFE"):
        options.arms = "control"
        {"save": save_and_die, "restore": restore}[life](Process(options, options.started_s))
    work = Path(options.work or Path.cwd() / f"restore-{options.seed}")
    shm = Path(options.shm or f"/dev/shm/restore-{options.seed}")
    work.mkdir(parents=True)
    shm.mkdir(parents=True)
    try:
        for life in ("save", "restore"):
            store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            fixed = ["--work", str(work), "--shm", str(shm), "--started-s", str(time.time())]
            identity = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(store.port), "LIFE": life}
            command = [sys.executable, __file__, *sys.argv[1:], *fixed]
            code = subprocess.run(command, env={**os.environ, **identity}, timeout=300).returncode
        sys.exit(code)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)


if __name__ == "__main__":
    main()
