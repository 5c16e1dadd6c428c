"""A tiny environment on a local Kubernetes whose own waits are ten times shorter, used by the command alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from small_jobs import BASE

from environments.environment import Environment, load
from ops.cluster import Cluster
from ops.follow import outcome_of
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.node.substitutions import Substitutions
from ops.local_world import PROJECT_ROOT, gpu_node, system_node
from trainer.events import read_ledger

STEADFAST = Path(sys.executable).parent / "steadfast"
TIME_SCALE = 0.1
LIMIT_S = 500.0
STEPS = 60
PACE = {"id": "pace", "class": "slow_rank", "rank": 0, "step": 1, "duration_s": 0.1, "num_steps": STEPS}
"""Slows the first attempt down, so that whoever breaks it from outside is in time; later ones are fast."""


@dataclass
class Place:
    """One environment, its cluster and the command."""

    environment: Environment
    file: Path
    root: Path
    local: LocalCluster

    @property
    def cluster(self) -> Cluster:
        return Cluster.from_kubeconfig(self.local.kubeconfig, self.environment.namespace)

    def steadfast(self, verb: str, *arguments: str, code: int = 0) -> Any:
        """The verb's JSON."""
        process = self.start(verb, *arguments)
        return self.end(process, code)

    def start(self, verb: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [STEADFAST, *verb.split(), str(self.file), *arguments, "--local", "--json"],
            env={**os.environ, "STEADFAST_LOCAL": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def end(self, process: subprocess.Popen[str], code: int = 0) -> Any:
        try:
            said, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, errors = process.communicate()
        assert process.returncode == code, said + errors
        return json.loads(said)

    def submit(self, run: str, *faults: Mapping[str, Any], resume: bool = False) -> subprocess.Popen[str]:
        """A paced run with these faults, under way."""
        file = self.root / f"{run}.yaml"
        with file.open("w") as stream:
            YAML().dump([PACE, *map(dict, faults)], stream)
        more = ["--resume"] if resume else []
        return self.start("submit", "--run", run, "--faults", str(file), *more)

    def records(self, run: str, *events: str) -> list[Mapping[str, Any]]:
        folder = self.root / self.environment.name / "fsx" / "runs" / run / "events"
        found = [record for record in read_ledger(folder) if record["event"] in events]
        return sorted(found, key=lambda record: record["mono_s"])

    def until_step(self, run: str, step: int, process: subprocess.Popen[str]) -> None:
        """Until some rank has done it."""
        deadline_s = time.monotonic() + LIMIT_S
        while not any(record["step"] >= step for record in self.records(run, "step")):
            assert time.monotonic() < deadline_s and process.poll() is None, "the run does not get going"
            time.sleep(0.1)

    def until(self, what: str, happened: Any) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not happened():
            assert time.monotonic() < deadline_s, f"still not so: {what}"
            time.sleep(0.1)

    def job(self, run: str) -> Any:
        return self.cluster.jobs(run)[-1]

    def ended(self, run: str) -> bool:
        return outcome_of(self.job(run)) is not None


def _place(root: Path, name: str, spares: int) -> Place:
    training = {**BASE, "loop": {**BASE["loop"], "steps": STEPS}}
    text = {
        "name": name,
        "region": "us-east-1",
        "availability_zone": "us-east-1a",
        "instance_type": "p5.4xlarge",
        "nodes": 2,
        "spares": spares,
        "access": {"admins": ["arn:aws:iam::111122223333:role/platform-admin"]},
        "training": training,
    }
    root.mkdir(exist_ok=True)
    file = root / f"{name}.yaml"
    with file.open("w") as stream:
        YAML().dump(text, stream)
    return Place(load(file), file, root, LocalCluster(root / name))


@pytest.fixture(name="place", scope="session")
def _place_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Two nodes and nothing to spare."""
    with_cluster = _started(_place(tmp_path_factory.mktemp("e"), "bare", 0))
    yield with_cluster
    with_cluster.local.stop()


@pytest.fixture(name="spare_place", scope="session")
def _spare_place_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Two nodes and a spare."""
    with_cluster = _started(_place(tmp_path_factory.mktemp("e"), "spared", 1))
    yield with_cluster
    with_cluster.local.stop()


def _started(place: Place) -> Place:
    environment, fsx = place.environment, place.root / place.environment.name / "fsx"
    fsx.mkdir(parents=True)
    gpu = [gpu_node(environment, number) for number in range(environment.nodes + environment.spares)]
    system = [system_node(environment, 0)]
    place.local.start(
        [*gpu, *system], environment.kubernetes_version, Substitutions(fsx, PROJECT_ROOT), TIME_SCALE
    )
    return place


@pytest.fixture(name="undisturbed", scope="session")
def _undisturbed(place: Place) -> str:
    """Digest of the parameters that every run must end with."""
    result = place.steadfast("submit", "--run", "undisturbed")
    digest: str = result["summary"]["params_sha256"]
    return digest
