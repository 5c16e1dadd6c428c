"""A ledger made by rules, to hold the report's figures against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from trainer.events import Event

BOOT_WALL_S = 1_700_000_000.0
START_S = 100.0


@dataclass
class Simulator:
    """Plays a job: moves a monotonic clock and writes what ranks and launchers would."""

    world_size: int = 2
    step_s: float = 0.1
    rows: list[dict[str, Any]] = field(default_factory=list)
    now: float = START_S
    attempt: int = 0
    position: int = 0
    high_water: int = 0
    executed: int = 0
    lost: int = 0
    faults: int = 0

    def write(self, event: Event, rank: int | None = None, **fields: Any) -> None:
        mono_s = self.now
        common: dict[str, Any] = {"host": "h", "boot": "b", "source": "s", "pid": 1, "pod": f"job-{rank or 0}"}
        if rank is not None:
            common |= {"rank": rank, "attempt": self.attempt}
        row = {"event": event.value, "wall_s": BOOT_WALL_S + mono_s, "mono_s": mono_s}
        self.rows.append({**row, **common, **fields})

    def wait(self, seconds: float) -> None:
        self.now += seconds

    @property
    def ranks(self) -> range:
        return range(self.world_size)

    def launch(self, wait_s: float = 0.5) -> None:
        """The pods' launchers start."""
        for pod in self.ranks:
            self.write(Event.LAUNCH_STARTED, pod=f"job-{pod}", start=1)
        self.wait(wait_s)

    def processes(self, imports_s: float = 1.0) -> None:
        """New ranks start and import."""
        start_s = self.now
        self.wait(imports_s)
        self.attempt += 1
        for rank in self.ranks:
            self.write(Event.PROCESS_STARTED, rank, start_s=start_s, imported_s=self.now)

    def open(self, load: int, *, layer: str = "launcher", phase_s: float = 0.2, restored: bool = True) -> None:
        """Group, build, attempt, load."""
        self.wait(phase_s)
        for rank in self.ranks:
            self.write(Event.GROUP_READY, rank, duration_s=phase_s)
        self.wait(phase_s)
        for rank in self.ranks:
            self.write(Event.BUILT, rank, duration_s=phase_s)
        self.write(Event.ATTEMPT_OPENED, 0, step=load, world_size=self.world_size, layer=layer)
        self.lost += max(0, self.position - load)
        self.position = load
        if restored:
            self.wait(phase_s)
            for rank in self.ranks:
                self.write(Event.RESTORED, rank, step=load, duration_s=phase_s)

    def step(self, seconds: float | None = None, *, blocked_s: float = 0.0, saving: bool = False) -> None:
        """One step on all ranks; the last rank is the slowest by a millisecond."""
        start_s = self.now
        self.wait(self.step_s if seconds is None else seconds)
        self.position += 1
        self.executed += 1
        self.high_water = max(self.high_water, self.position)
        for rank in self.ranks:
            end_s = self.now - 0.001 * (self.world_size - 1 - rank)
            fields: dict[str, Any] = {"tokens": 8, "loss": 5.0 / self.position, "finite": True, "data_s": 0.001}
            fields |= {"blocked_s": blocked_s if rank == 0 else 0.0, "saving": saving}
            self.write(Event.STEP, rank, step=self.position, start_s=start_s, end_s=end_s, **fields)

    def steps(self, count: int, **how: Any) -> None:
        for _ in range(count):
            self.step(**how)

    def save(self, commit_s: float = 0.05) -> None:
        """A generation of the present step, committed `commit_s` later, while nothing else happens."""
        for rank in self.ranks:
            fields: dict[str, Any] = {
                "launch_s": 0.001,
                "blocked_s": 0.002 * (rank + 1),
                "bytes": 500,
                "stage": "host",
            }
            self.write(Event.SNAPSHOT, rank, step=self.position, **fields)
        self.wait(commit_s)
        commit: dict[str, Any] = {
            "generation": f"step-{self.position:08d}.{self.attempt}",
            "bytes": 1000,
            "commit_s": commit_s,
        }
        self.write(Event.COMMITTED, 0, step=self.position, end_s=self.now, **commit)

    def evaluate(self, seconds: float = 0.3) -> None:
        start_s = self.now
        self.wait(seconds)
        for rank in self.ranks:
            self.write(Event.EVALUATION, rank, step=self.position, start_s=start_s, end_s=self.now, loss=1.0)

    def fault(self, cls: str = "sigkill", rank: int = 1, after_s: float = 0.03) -> str:
        """Injected in the middle of the next step."""
        self.wait(after_s)
        self.faults += 1
        name = f"f{self.faults}"
        self.write(Event.FAULT_INJECTED, rank, id=name, step=self.position + 1, fault_rank=rank, **{"class": cls})
        return name

    def detect(self, after_s: float = 0.05, stop_s: float = 1.0) -> None:
        """ft_launcher sees it and stops the ranks."""
        self.wait(after_s)
        for pod in self.ranks:
            self.write(Event.FAILURE_DETECTED, pod=f"job-{pod}", layer="launcher", detail="exit -9")
        self.wait(stop_s)
        for pod in self.ranks:
            self.write(Event.WORKERS_STOPPED, pod=f"job-{pod}")
        self.wait(0.4)

    def interrupt(self, after_s: float = 0.05, stop_s: float = 0.2) -> None:
        """The in-process layer sees it and lets go."""
        self.wait(after_s)
        for rank in self.ranks:
            self.write(Event.INTERRUPTED, rank, layer="in_process", detail="RuntimeError")
        self.wait(stop_s)
        for rank in self.ranks:
            self.write(Event.ABORTED, rank)
        self.attempt += 1

    def finish(self, drain_s: float = 0.4) -> None:
        start_s = self.now
        self.wait(drain_s)
        for rank in self.ranks:
            self.write(Event.DRAIN, rank, start_s=start_s, end_s=self.now)
            self.write(Event.FINISHED, rank, step=self.position)
        fields: dict[str, Any] = {"final_loss": 0.5, "params_sha256": "a" * 64, "num_params": 10}
        self.write(Event.FINAL, 0, step=self.position, **fields)
        self.wait(0.2)
        for pod in self.ranks:
            ended: dict[str, Any] = {"returncode": 0, "exit_code": 0, "reason": "target reached"}
            self.write(Event.LAUNCH_ENDED, pod=f"job-{pod}", **ended)


@pytest.fixture(name="simulator")
def _simulator() -> Callable[..., Simulator]:
    return Simulator
