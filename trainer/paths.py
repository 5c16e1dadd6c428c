"""Where a run's files are. Imports neither torch nor NVRx."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

GENERATION_NAME = re.compile(r"^step-(\d{8})\.(\d+)$")


def generation_name(step: int, attempt: int) -> str:
    """A generation's directory name: step, then the attempt that wrote it; never used twice."""
    return f"step-{step:08d}.{attempt}"


@dataclass(frozen=True)
class RunPaths:
    """The run directory on the shared file system (docs/run-directory.md)."""

    root: Path

    @property
    def run_json(self) -> Path:
        """The configuration as run."""
        return self.root / "run.json"

    @property
    def attempts(self) -> Path:
        """`<n>.json` each: who started when, from which generation."""
        return self.root / "attempts"

    def starts(self, submission: int) -> Path:
        """What the starts of one submission came to, for the rule against endless restarts."""
        return self.attempts / f"starts.{submission}.jsonl"

    @property
    def checkpoints(self) -> Path:
        """One directory per generation."""
        return self.root / "checkpoints"

    @property
    def events(self) -> Path:
        """The ledger: append-only JSON lines, one file per writing process."""
        return self.root / "events"

    @property
    def report(self) -> Path:
        """summary.json, report.html, plots."""
        return self.root / "report"

    @property
    def verdicts(self) -> Path:
        """What ranks leave for `trainer.launch` before they end the job."""
        return self.root / "verdicts"

    @property
    def completion(self) -> Path:
        """Written once, when the target step is reached and its generation committed."""
        return self.root / "complete.json"

    @property
    def progress(self) -> Path:
        """An integer: the newest step that was committed or started from, for ft_launcher's no-progress rule."""
        return self.root / "progress"

    @property
    def learned(self) -> Path:
        """Measured step time, for the timeouts of later starts."""
        return self.root / "learned.json"

    @property
    def launcher(self) -> Path:
        """ft_launcher's own logs and cycle information."""
        return self.root / "launcher"

    def make(self) -> None:
        """Create the directories; harmless when they exist."""
        for path in (self.attempts, self.checkpoints, self.events, self.verdicts, self.launcher):
            path.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class PodContext:
    """What the manifest tells a container through its environment (k8s/training_job.py writes it)."""

    run: str
    paths: RunPaths
    data: Path
    shm: Path
    pod: str
    pod_ip: str
    node: str
    config_json: str
    faults_json: str
    submission: int = 1

    @classmethod
    def from_environment(cls, env: Mapping[str, str] | None = None) -> PodContext:
        """Raises KeyError naming the variable that the manifest should have set."""
        env = os.environ if env is None else env
        return cls(
            run=env["STEADFAST_RUN"],
            paths=RunPaths(Path(env["STEADFAST_RUN_DIR"])),
            data=Path(env["STEADFAST_DATA_DIR"]),
            shm=Path(env["STEADFAST_SHM_DIR"]),
            pod=env["POD_NAME"],
            pod_ip=env["POD_IP"],
            node=env["NODE_NAME"],
            config_json=env["STEADFAST_CONFIG"],
            faults_json=env.get("STEADFAST_FAULTS", "[]"),
            submission=int(env.get("STEADFAST_SUBMISSION", "1")),
        )
