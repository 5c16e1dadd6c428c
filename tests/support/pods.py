"""A training job as plain processes, without Kubernetes: what the manifest's containers do, on one host.

For tests of the trainer and for scripts on GPU machines. The local Kubernetes (ops/local) is the real runner.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from environments.environment import Environment
from k8s.launcher_command import control_command, launcher_command
from k8s.network_environment import IN_PROCESS
from trainer.config import TrainConfig
from trainer.events import read_ledger
from trainer.faults.schema import Fault, dump_faults
from trainer.paths import RunPaths

PROJECT = Path(__file__).resolve().parents[2]


@dataclass
class Job:
    """A store host and `nodes + spares` pods of `ranks_per_node` ranks, under `root`."""

    root: Path
    config: TrainConfig
    nodes: int = 2
    spares: int = 0
    ranks_per_node: int = 1
    faults: Sequence[Fault] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[str] = ()
    """CUDA_VISIBLE_DEVICES of each pod."""

    def __post_init__(self) -> None:
        self.paths = RunPaths(self.root / "fsx" / "runs" / "test")
        self.paths.make()
        self.port = _free_port()
        self.shm = Path("/dev/shm") / f"steadfast-test-{os.getpid()}-{self.root.name}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._scratch: list[Path] = []
        self._described = Environment.model_construct(
            nodes=self.nodes,
            spares=self.spares,
            instance_type="p5.4xlarge",
            training=self.config,
        )

    def start(self) -> None:
        """Store first, then every pod."""
        self.start_control()
        for number in range(self.nodes + self.spares):
            self.start_pod(number)

    def start_control(self) -> None:
        """(Re)start the store's pod."""
        self._spawn("control", "trainer.store_host", control_command(self._described, "test-1"), "127.0.0.1", {})

    def start_pod(self, number: int) -> None:
        """(Re)start a training pod."""
        arguments = [
            f"--nproc-per-node={self.ranks_per_node}" if a.startswith("--nproc-per-node=") else a
            for a in launcher_command(self._described, "test-1")
        ]
        gpus = {"CUDA_VISIBLE_DEVICES": self.gpus[number]} if self.gpus else {}
        self._spawn(f"pod-{number}", "trainer.launch", arguments, f"127.0.0.{number + 1}", gpus)

    def _spawn(self, name: str, module: str, arguments: list[str], address: str, more: dict[str, str]) -> None:
        shm = self.shm / name
        # NVRx puts its sockets there, and a socket's path must stay below 108 characters.
        scratch = Path(tempfile.mkdtemp(prefix="steadfast-"))
        self._scratch.append(scratch)
        variables = {
            "POD_NAME": f"test-1-{name}",
            "POD_UID": name,
            "POD_IP": address,
            "NODE_NAME": f"node-{name}",
            "STEADFAST_RUN": "test",
            "STEADFAST_SUBMISSION": "1",
            "STEADFAST_RUN_DIR": str(self.paths.root),
            "STEADFAST_DATA_DIR": str(self.root / "fsx" / "data"),
            "STEADFAST_SHM_DIR": str(shm),
            "STEADFAST_TERMINATION_LOG": str(self.root / f"{name}.termination"),
            "STEADFAST_STORE_ENDPOINT": f"127.0.0.1:{self.port}",
            "STEADFAST_STORE_PORT": str(self.port),
            "STEADFAST_CONFIG": self.config.model_dump_json(),
            "STEADFAST_FAULTS": dump_faults(list(self.faults)),
            "TMPDIR": str(scratch),
            "OMP_NUM_THREADS": "1",
            **(IN_PROCESS if self.config.recovery.in_process else {}),
            "PYTHONPATH": os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            **more,
            **self.environment,
        }
        expanded = [_expand(argument, variables) for argument in arguments]
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", module, "--", *expanded],
                env={**os.environ, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=PROJECT,
            )

    def wait(self, timeout_s: float, prefix: str = "") -> dict[str, int | None]:
        """Exit codes by name, once those that begin with `prefix` have ended; None for what still runs then."""
        awaited = [process for name, process in self.processes.items() if name.startswith(prefix)]
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(process.poll() is None for process in awaited):
            time.sleep(0.1)
        return {name: process.poll() for name, process in self.processes.items()}

    def until(self, happened: Callable[[list[Mapping[str, Any]]], bool], timeout_s: float) -> None:
        """Wait for the ledger to show something. Raises TimeoutError with the end of every log."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if happened(self.records()):
                return
            time.sleep(0.1)
        raise TimeoutError(self.logs())

    def records(self, *events: str) -> list[Mapping[str, Any]]:
        """The ledger in order of time, only `events` if any are given."""
        records = [r for r in read_ledger(self.paths.events) if not events or r["event"] in events]
        return sorted(records, key=lambda record: record["mono_s"])

    def completion(self) -> dict[str, Any]:
        """The completion record. Raises FileNotFoundError when the target was not reached."""
        return json.loads(self.paths.completion.read_text())

    def logs(self, lines: int = 40) -> str:
        """The end of every log."""
        parts = []
        for path in sorted(self.root.glob("*.log")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {path.name}\n" + "\n".join(tail))
        return "\n".join(parts)

    def kill_pod(self, *names: str) -> None:
        """SIGKILL everything the pods run, at once, as when their nodes are lost; shared memory goes with it."""
        trees = [_tree(self.processes[name].pid, f"test-1-{name}", self.paths.root) for name in names]
        for process in (process for tree in trees for process in tree):  # a pod's first one first
            process.kill()
        for name in names:
            self.processes[name].wait()
            shutil.rmtree(self.shm / name, ignore_errors=True)

    def stop(self) -> None:
        """End everything that is left, and its shared memory."""
        for name, process in self.processes.items():
            for member in _tree(process.pid, f"test-1-{name}", self.paths.root):
                member.kill()
        for process in self.processes.values():
            process.wait()
        for folder in self._scratch:
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.shm, ignore_errors=True)


@contextmanager
def running(job: Job) -> Iterator[Job]:
    """Start, and end whatever happens."""
    try:
        job.start()
        yield job
    finally:
        job.stop()


def write_data(directory: Path, *, tokens: int = 60_000, vocab_size: int = 256) -> None:
    """A training and a held-out split of tokens with something to learn in them."""
    for split, seed in (("train", 0), ("eval", 1)):
        folder = directory / split
        folder.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(seed).integers(0, 8, tokens)
        values = ((np.arange(tokens) * 7 + noise) % vocab_size).astype(
            np.uint32 if vocab_size > 65536 else np.uint16
        )
        values.tofile(folder / "00000.bin")
        shard = {"file": "00000.bin", "tokens": tokens, "sha256": ""}
        index = {"dtype": values.dtype.name, "vocab_size": vocab_size, "shards": [shard]}
        (folder / "index.json").write_text(json.dumps(index))


def _tree(pid: int, pod: str, run_dir: Path) -> list[psutil.Process]:
    """A pod's processes, detached ones too: NVRx's monitors leave their session, so the environment tells."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
        except (psutil.Error, OSError):
            continue
        same = variables.get("POD_NAME") == pod and variables.get("STEADFAST_RUN_DIR") == str(run_dir)
        if process.pid == pid or same:
            found.append(process)
    return found


def _expand(argument: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        argument = argument.replace(f"$({name})", value)
    return argument


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def terminate(job: Job, name: str) -> None:
    """What the kubelet does first: SIGTERM to the container's first process alone."""
    job.processes[name].send_signal(signal.SIGTERM)
