"""Ranks as processes, a store outside them, and what they said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from trainer.events import read_ledger
from trainer.paths import RunPaths

PROGRAM = Path(__file__).with_name("program.py")


@dataclass
class Ranks:
    """One launch of all ranks."""

    processes: list[subprocess.Popen[str]]
    heard: list[dict[str, Any]] = field(default_factory=list)

    def wait(self, timeout_s: float = 90) -> Ranks:
        """Until every rank has ended."""
        end = time.monotonic() + timeout_s
        for process in self.processes:
            out, _ = process.communicate(timeout=max(end - time.monotonic(), 1))
            self.heard += [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return self

    def all(self, what: str) -> list[dict[str, Any]]:
        """Everything said of that kind, in order, by all ranks."""
        return [said for said in self.heard if said["what"] == what]

    def one(self, what: str, key: str, index: int = -1) -> Any:
        """What all ranks said alike, the last time."""
        by_rank: dict[int, list[Any]] = {}
        for said in self.all(what):
            by_rank.setdefault(said["rank"], []).append(said[key])
        values = {json.dumps(values[index]) for values in by_rank.values()}
        assert len(values) == 1, (what, key, self.heard)
        return json.loads(values.pop())

    @property
    def codes(self) -> list[int]:
        return [process.returncode for process in self.processes]


class Run:
    """A run directory, its shared memory, and launches of ranks on it."""

    def __init__(self, root: Path, shm: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.make()
        self.shm = shm
        self._launches = 0
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
        self._all: list[subprocess.Popen[str]] = []

    def launch(self, *orders: list[Any], ranks: int = 2, **options: Any) -> Ranks:
        """Start the ranks; `wait` for them."""
        self._launches += 1
        options = {
            "run_dir": str(self.paths.root),
            "shm": str(self.shm),
            "prefix": f"{self.paths.root.name}.{self._launches}",
            "orders": list(orders),
            **options,
        }
        options["config"] = {
            "persist_every": 1000,
            "commit_timeout_s": 20,
            "overlap": "wait",
            **options.get("config", {}),
        }
        started = [self._spawn(rank, ranks, options) for rank in range(ranks)]
        self._all += started
        return Ranks(started)

    def run(self, *orders: list[Any], ranks: int = 2, **options: Any) -> Ranks:
        """Start the ranks and wait for their end."""
        return self.launch(*orders, ranks=ranks, **options).wait()

    def _spawn(self, rank: int, ranks: int, options: dict[str, Any]) -> subprocess.Popen[str]:
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_PORT": str(self._store.port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        command = [sys.executable, str(PROGRAM), json.dumps(options)]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Of the ledger, in order of time."""
        found = [dict(record) for record in read_ledger(self.paths.events) if record["event"] == kind]
        return sorted(found, key=lambda record: record["mono_s"])

    def generations(self) -> list[str]:
        """Committed ones."""
        return sorted(path.parent.name for path in self.paths.checkpoints.glob("step-*/commit.json"))

    def forget_memory(self) -> None:
        """As if the pods were new."""
        import shutil

        for path in self.shm.glob("steadfast.*"):
            shutil.rmtree(path)

    def end(self) -> None:
        for process in self._all:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[[], Run]]:
    """Runs below the test's directory; memory in /dev/shm."""
    import shutil
    import tempfile

    shm = Path(tempfile.mkdtemp(prefix="steadfast-test-", dir="/dev/shm"))
    runs: list[Run] = []

    def make() -> Run:
        runs.append(Run(tmp_path / f"run{len(runs)}", shm))
        return runs[-1]

    yield make
    for run in runs:
        run.end()
    shutil.rmtree(shm, ignore_errors=True)


@pytest.fixture
def run(make_run: Callable[[], Run]) -> Run:
    """One run."""
    return make_run()
