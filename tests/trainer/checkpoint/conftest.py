"""Ranks as processes, a store outside them, and what they said."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from trainer.events import read_ledger
from trainer.paths import RunPaths

PROGRAM = Path(__file__).with_name("program.py")


class Zygote:
    """A process that has imported torch once; ranks are forked from it."""

    def __init__(self) -> None:
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self._process = subprocess.Popen([sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, text=True, env=env)

    def launch(self, directory: Path, ranks: int, env: dict[str, str], options: dict[str, Any]) -> None:
        request = {"directory": str(directory), "ranks": ranks, "env": env, "options": options}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


@dataclass
class Ranks:
    """One launch of all ranks."""

    directory: Path
    heard: list[dict[str, Any]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    def wait(self, timeout_s: float = 280) -> Ranks:
        """Until every rank has ended."""
        end, codes = time.monotonic() + timeout_s, self.directory / "codes.json"
        while not codes.exists():
            assert time.monotonic() < end, f"ranks hang: {self.listen()}"
            time.sleep(0.02)
        self.codes = json.loads(codes.read_text())
        self.heard = self.listen()
        return self

    def listen(self) -> list[dict[str, Any]]:
        """What has been said so far."""
        texts = [path.read_text() for path in sorted(self.directory.glob("*.out"))]
        return [json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")]

    def until(self, what: str, count: int = 1, timeout_s: float = 280) -> None:
        """Until that has been said so often, by all ranks together."""
        end = time.monotonic() + timeout_s
        while sum(said["what"] == what for said in self.listen()) < count:
            assert time.monotonic() < end, f"nobody said {what}: {self.listen()}"
            time.sleep(0.01)

    @property
    def pids(self) -> list[int]:
        """Of the ranks."""
        return json.loads((self.directory / "pids.json").read_text())

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


class Run:
    """A run directory, its shared memory, and launches of ranks on it."""

    def __init__(self, root: Path, shm: Path, zygote: Zygote) -> None:
        self._zygote = zygote
        self.paths = RunPaths(root)
        self.paths.make()
        self.shm = shm
        self._launches = 0
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
        self._all: list[Ranks] = []

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
            "commit_timeout_s": 100,
            "overlap": "wait",
            **options.get("config", {}),
        }
        directory = self.paths.root.parent / f"{self.paths.root.name}.launch{self._launches}"
        directory.mkdir()
        env = {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(self._store.port)}
        self._zygote.launch(directory, ranks, env, options)
        self._all.append(Ranks(directory))
        return self._all[-1]

    def run(self, *orders: list[Any], ranks: int = 2, **options: Any) -> Ranks:
        """Start the ranks and wait for their end."""
        return self.launch(*orders, ranks=ranks, **options).wait()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Of the ledger, in order of time."""
        found = [dict(record) for record in read_ledger(self.paths.events) if record["event"] == kind]
        return sorted(found, key=lambda record: record["mono_s"])

    def generations(self) -> list[str]:
        """Committed ones."""
        return sorted(path.parent.name for path in self.paths.checkpoints.glob("step-*/commit.json"))

    def forget_memory(self) -> None:
        """As if the pods were new."""
        for path in self.shm.glob("steadfast.*"):
            shutil.rmtree(path)

    def end(self) -> None:
        for ranks in self._all:
            if not ranks.codes and (ranks.directory / "pids.json").exists():
                for pid in ranks.pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """For all tests."""
    process = Zygote()
    yield process
    process.end()


@pytest.fixture(scope="session")
def make_tokens(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Makes a split whose windows of that length each begin with another token."""

    def make(length: int, windows: int = 200) -> Path:
        directory = tmp_path_factory.mktemp("tokens")
        count = windows * length + 1
        np.arange(count, dtype=np.uint16).tofile(directory / "0.bin")
        shards = [{"file": "0.bin", "tokens": count, "sha256": ""}]
        index = {"dtype": "uint16", "vocab_size": 65536, "shards": shards}
        (directory / "index.json").write_text(json.dumps(index))
        return directory

    return make


@pytest.fixture
def make_run(tmp_path: Path, zygote: Zygote) -> Iterator[Callable[[], Run]]:
    """Runs below the test's directory; memory in /dev/shm."""
    shm = Path(tempfile.mkdtemp(prefix="steadfast-test-", dir="/dev/shm"))
    runs: list[Run] = []

    def make() -> Run:
        runs.append(Run(tmp_path / f"run{len(runs)}", shm, zygote))
        return runs[-1]

    yield make
    for run in runs:
        run.end()
    shutil.rmtree(shm, ignore_errors=True)


@pytest.fixture(scope="module")
def module_run(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Iterator[Run]:
    """One run for a whole module."""
    shm = Path(tempfile.mkdtemp(prefix="steadfast-test-", dir="/dev/shm"))
    run = Run(tmp_path_factory.mktemp("module") / "run", shm, zygote)
    yield run
    run.end()
    shutil.rmtree(shm, ignore_errors=True)


@pytest.fixture
def run(make_run: Callable[[], Run]) -> Run:
    """One run."""
    return make_run()
