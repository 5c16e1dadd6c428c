"""Containers as processes, each behind a shim that remembers how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.local.node import processes
from ops.local.node.cgroups import Cgroups

_SHIM = Path(__file__).with_name("shim.py")
LOST_EXIT_CODE = 137


@dataclass(frozen=True)
class ContainerPlan:
    """All that a shim needs to make a container."""

    pod_uid: str
    name: str
    attempt: int
    argv: list[str]
    env: dict[str, str]
    cwd: str
    hostname: str
    etc: dict[str, str]
    netns: str | None
    memory_bytes: int | None


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    exit_code: int
    started_at_s: float
    finished_at_s: float
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Running:
    """A container's first process."""

    pid: int
    started_at_s: float


State = Running | Ended | None
"""None: on its way."""


@dataclass
class Runtime:
    """The containers of one environment."""

    cluster: str
    """The mark of the environment's processes."""
    pods: Path
    cgroups: Cgroups
    _shims: dict[Path, subprocess.Popen[bytes]] = field(default_factory=dict)
    _running: dict[Path, Running] = field(default_factory=dict)

    def directory(self, pod_uid: str, container: str, attempt: int) -> Path:
        """Everything about one run of one container."""
        return self.pods / pod_uid / container / str(attempt)

    def log_file(self, pod_uid: str, container: str, attempt: int) -> Path:
        """What it wrote to stdout and stderr."""
        return self.directory(pod_uid, container, attempt) / "log"

    def start(self, plan: ContainerPlan) -> None:
        """Starts the container; `state` tells what became of it."""
        directory = self.directory(plan.pod_uid, plan.name, plan.attempt)
        directory.mkdir(parents=True, exist_ok=True)
        log = directory / "log"
        log.touch()
        groups = self.cgroups.create(f"{plan.pod_uid}.{plan.name}", plan.memory_bytes)
        mark = {processes.MARK: processes.mark_of(self.cluster, plan.pod_uid)}
        spec = {
            "argv": plan.argv,
            "env": plan.env | mark,
            "cwd": plan.cwd,
            "hostname": plan.hostname,
            "etc": plan.etc,
            "netns": plan.netns,
            "cgroups": [str(g) for g in groups],
            "log_file": str(log),
            "running_file": str(directory / "running.json"),
            "exit_file": str(directory / "exit.json"),
        }
        spec_file = directory / "spec.json"
        spec_file.write_text(json.dumps(spec))
        with (directory / "shim.log").open("wb") as errors:
            self._shims[directory] = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SHIM), str(spec_file)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env={"PATH": os.defpath} | mark,
                start_new_session=True,
            )

    def state(self, pod_uid: str, container: str, attempt: int) -> State:
        """What is known of the container now, whoever started it."""
        directory = self.directory(pod_uid, container, attempt)
        alive = self._shim_alive(directory)
        if alive and directory in self._running:
            return self._running[directory]
        ended = _read(directory / "exit.json")
        if ended is not None:
            self._running.pop(directory, None)
            return _ended(ended)
        running = _read(directory / "running.json")
        if alive:
            if running is None:
                return None
            return self._running.setdefault(directory, Running(running["pid"], running["startedAt"]))
        self.kill(pod_uid, container)
        started_s = running["startedAt"] if running else directory.stat().st_mtime
        message = _tail(directory / "shim.log")
        return Ended(
            LOST_EXIT_CODE, started_s, time.time(), "ContainerStatusUnknown", message or "its shim is gone"
        )

    def _shim_alive(self, directory: Path) -> bool:
        shim = self._shims.get(directory)
        if shim is not None:
            if shim.poll() is None:
                return True
            del self._shims[directory]
            return False
        running = _read(directory / "running.json")
        return running is not None and processes.runs(running["shim"], str(directory / "spec.json"))

    def terminate(self, pod_uid: str, container: str, attempt: int) -> bool:
        """SIGTERM for the first process only, as a container runtime does; False if there is none (yet)."""
        state = self.state(pod_uid, container, attempt)
        return isinstance(state, Running) and processes.send(state.pid, signal.SIGTERM)

    def kill(self, pod_uid: str, container: str = "") -> None:
        """SIGKILL for every process of a container, or of a whole pod. The shims stay and note it."""
        prefix = f"{pod_uid}.{container}"
        if self.cgroups.tree is not None:
            self.cgroups.kill(prefix)
            return
        for directory, _ in self._directories(pod_uid, container):
            running = _read(directory / "running.json")
            if running is not None and processes.runs(running["shim"], str(directory / "spec.json")):
                processes.send(running["pid"], signal.SIGKILL)

    def _directories(self, pod_uid: str, container: str) -> list[tuple[Path, int]]:
        pattern = f"{container or '*'}/*/spec.json"
        return [(p.parent, int(p.parent.name)) for p in (self.pods / pod_uid).glob(pattern)]

    def freeze(self, pod_uid: str, *, frozen: bool) -> None:
        """Stops every process of a pod where it stands, or lets it go on."""
        if self.cgroups.freeze(f"{pod_uid}.", frozen):
            return
        number = signal.SIGSTOP if frozen else signal.SIGCONT
        shims = {d["shim"] for p, _ in self._directories(pod_uid, "") if (d := _read(p / "running.json"))}
        for pid, _ in processes.marked(processes.mark_of(self.cluster, pod_uid)):
            if pid not in shims:
                processes.send(pid, number)

    def remove(self, pod_uid: str) -> None:
        """Ends whatever is left of a pod, shims included, and removes its groups."""
        self.cgroups.freeze(f"{pod_uid}.", False)
        self.kill(pod_uid)
        processes.kill_marked(processes.mark_of(self.cluster, pod_uid))
        for directory in [d for d in self._shims if d.is_relative_to(self.pods / pod_uid)]:
            self._shims.pop(directory).wait()
        for directory in [d for d in self._running if d.is_relative_to(self.pods / pod_uid)]:
            del self._running[directory]
        self.cgroups.remove(f"{pod_uid}.")


def _ended(data: dict[str, Any]) -> Ended:
    code, message = data["exitCode"], data["startError"]
    if message:
        reason = "StartError"
    elif data["oomKilled"]:
        reason = "OOMKilled"
    else:
        reason = "Completed" if code == 0 else "Error"
    return Ended(code, data["startedAt"], data["finishedAt"], reason, message)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return data


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-500:] if path.exists() else ""
