"""How long a restore takes: from the arena in the same and in a new process, from files, and by `dcp.load`.

    python tests/gpu/restore_times.py --out results               1 B parameters, 12 bytes each, on one GPU
    python tests/gpu/restore_times.py --out results --quick       small, on CPU

The parent starts two processes one after another on the same run directory. The first saves, under `stage: auto`,
and is killed, as a fault would kill it. The second restores from the arena that it left, then again in the same
process, then from files, as it would in the same pod and in a new one, and with `dcp.load`. Every restored
state is compared with the fingerprint of the one saved.
"""

from __future__ import annotations

import argparse
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from bench_model import Rank, Training
from bench_options import parse
from bench_report import versions

from trainer.checkpoint import CheckpointEngine, PlainControl
from trainer.checkpoint.arena import forget_snapshots
from trainer.checkpoint.layout import local
from trainer.config import CheckpointConfig
from trainer.events import Ledger, read_ledger
from trainer.paths import RunPaths

SAVE_STEP = 8
"""Late enough for `auto` to have been settled."""
WAIT_S = 300.0
RUN = "restore"
FIELDS = ("plan_s", "prepare_s", "verify_s", "apply_s")


class Process:
    """One life of the trainer. The engine comes first, as there: it maps an arena while the model is built."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank = Rank(options)
        self.paths = RunPaths(Path(options.work) / "run")
        self.paths.make()
        self.ledger = Ledger(self.paths.events, "rank-00000", pod="bench", rank=0)
        self.controls = 0
        self.engine = self.make_engine("auto" if os.environ["LIFE"] == "save" else "device")
        self.training = Training(options, self.rank)
        self.built_s = time.time() - options.started_s

    def make_engine(self, stage: str, pod: str = "bench") -> CheckpointEngine:
        """Of a pod. The arena lies under its name."""
        settings: dict[str, Any] = {"persist_every": SAVE_STEP, "stage": stage, "max_host_fraction": 0.9}
        return CheckpointEngine(
            config=CheckpointConfig(**settings, host_slots=self.options.host_slots),
            paths=self.paths,
            shm=Path(self.options.shm),
            run=RUN,
            pod=pod,
            ledger=self.ledger,
            device=self.rank.device,
        )

    def open(self) -> tuple[float, str]:
        """Seconds and tier of an `open`, the state in place at its end."""
        self.controls += 1
        control = PlainControl.make(self.rank.store, f"control.{os.getpid()}.{self.controls}", 120)
        self.rank.settle()
        started = time.perf_counter()
        restored = self.engine.open(control, self.training.state)
        self.rank.settle()
        return time.perf_counter() - started, restored.tier

    def replace_engine(self, stage: str, pod: str = "bench") -> tuple[float, str]:
        """As a new process would: nothing mapped, nothing registered. Seconds of the first `open`."""
        self.engine.close()
        self.engine = self.make_engine(stage, pod)
        return self.open()

    def registered(self) -> None:
        """Wait until the arena is pinned."""
        if not self.engine._backend._arena.registered.wait(WAIT_S):  # type: ignore[attr-defined]
            raise TimeoutError("the arena was not registered")

    def train(self, steps: int) -> None:
        """Steps of the training loop."""
        for _ in range(steps):
            number = self.training.step_number + 1
            self.engine.decide(number)
            self.training.forward_backward()
            self.engine.before_optimizer_step()
            self.training.update()
            self.training.step_number = number
            self.engine.after_step(number)

    def events(self, name: str) -> list[dict[str, Any]]:
        """In order."""
        found = [dict(e) for e in read_ledger(self.paths.events) if e["event"] == name]
        return sorted(found, key=lambda e: e["mono_s"])


def save_and_die(process: Process) -> None:
    """Leaves a committed generation, an arena, the fingerprint, and what `auto` took."""
    process.open()
    process.registered()
    before = memory_of(process.rank.device)
    for _ in range(SAVE_STEP):
        process.train(1)
        process.rank.settle()
        time.sleep(0.1)  # a step is short in small; the vote goes through the store
    process.engine._backend.drain(WAIT_S)
    auto = {
        "before_first_step": before,
        "at_the_save": memory_of(process.rank.device),
        "prepared": [{k: e[k] for k in ("stage", "device_bytes", "host_bytes", "duration_s")}
                     for e in process.events("prepared")],
        "snapshots": [{k: e[k] for k in ("step", "stage", "blocked_s")} for e in process.events("snapshot")],
    }  # fmt: skip
    saved = {"fingerprint": process.training.fingerprint().tolist(), "auto": auto}
    (Path(process.options.work) / "saved.json").write_text(json.dumps(saved))
    os.kill(os.getpid(), signal.SIGKILL)


def memory_of(device: torch.device) -> dict[str, int] | None:
    """What `auto` looks at."""
    if device.type != "cuda":
        return None
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return {"free_bytes": free_bytes, "total_bytes": total_bytes}


class Restores:
    """Rows of the table."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.saved = json.loads((Path(process.options.work) / "saved.json").read_text())
        self.nbytes = process.training.nbytes()
        self.rows: list[dict[str, Any]] = []

    def measure(self, name: str, call: Callable[[], tuple[float, str]]) -> None:
        """One way, from an empty model to an equal one."""
        training = self.process.training
        with torch.no_grad():
            for tensor in training.state.device_tensors().values():
                local(tensor).zero_()
        took_s, tier = call()
        equal = training.fingerprint().tolist() == self.saved["fingerprint"]
        row = {"way": name, "seconds": took_s, "tier": tier, "gb_s": self.nbytes / took_s / 1e9, "equal": equal}
        if "dcp" not in name:
            row |= {key: self.process.events("restored")[-1][key] for key in FIELDS}
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def write(self) -> None:
        """Everything so far."""
        process, out = self.process, Path(self.process.options.out)
        result = {
            "versions": versions(process.rank.device, Path(process.options.work)),
            "bytes": self.nbytes,
            "imports_and_build_s": process.built_s,
            "auto": self.saved["auto"],
            "rows": self.rows,
        }
        out.mkdir(parents=True, exist_ok=True)
        (out / "restore_times.json").write_text(json.dumps(result, indent=1) + "\n")


def restore(process: Process) -> None:
    """Every way, one after another."""
    restores, shm = Restores(process), Path(process.options.shm)

    def again() -> tuple[float, str]:
        process.engine.abort()
        return process.open()

    def from_files() -> tuple[float, str]:
        process.engine.abort()
        forget_snapshots(shm, RUN, "bench")
        return process.open()

    restores.measure("arena, new process", process.open)
    process.registered()
    for number in range(3):
        restores.measure(f"arena, same process, {number + 1}", again)
    for number in range(3):
        restores.measure(f"files, same pod, {number + 1}", from_files)
    restores.write()
    restores.measure("arena, mapped anew, stage auto", lambda: process.replace_engine("auto"))
    process.registered()
    restores.measure("arena, same process, stage auto", again)
    restores.measure("files, new pod", lambda: process.replace_engine("device", "another"))
    restores.write()
    restores.measure("dcp.load, the same files", lambda: dcp_load(process))
    restores.write()
    process.engine.close()
    os._exit(0 if all(row["equal"] for row in restores.rows) else 1)


def dcp_load(process: Process) -> tuple[float, str]:
    """Plain torch, from the same files."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    newest = sorted(process.paths.checkpoints.glob("step-*"))[-1]
    started = time.perf_counter()
    load(process.training.state.device_tensors(), storage_reader=FileSystemReader(newest))
    process.rank.settle()
    return time.perf_counter() - started, "storage"


def main() -> None:
    """One life after the other."""
    options = parse(__doc__)
    if life := os.environ.get("LIFE"):
        {"save": save_and_die, "restore": restore}[life](Process(options))
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
            code = subprocess.run(command, env={**os.environ, **identity}, timeout=300, check=False).returncode
        sys.exit(code)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)


if __name__ == "__main__":
    main()
