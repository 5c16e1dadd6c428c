"""Environments as data for the manifests' tests."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import cdk8s
import pytest

from environments.environment import Environment
from environments.instance_types import INSTANCE_TYPES
from environments.versions import KUBERNETES
from k8s.cluster_charts import LustreVolume, cluster_charts
from k8s.manifest import Manifest, manifests
from k8s.run_spec import RunSpec
from k8s.training_job import run_charts

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/research/trainer@sha256:" + "0123456789abcdef" * 4
VOLUME = LustreVolume("fs-0123456789abcdef0", "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com", "abcdefgh")
DEFAULTS: dict[str, Any] = {
    "name": "research",
    "region": "us-east-1",
    "availability_zone": "us-east-1b",
    "instance_type": "p5.48xlarge",
    "nodes": 2,
}

MakeEnvironment = Callable[..., Environment]


def build_environment(**changes: Any) -> Environment:
    """The default environment with these fields changed."""
    return Environment.model_validate({**DEFAULTS, **changes})


SIZES = ((1, 0), (2, 0), (2, 1), (8, 2), (64, 4))
BLOCK = {
    "kind": "capacity-block",
    "reservation": "cr-0123456789abcdef0",
    "start": "2026-12-01T11:30:00Z",
    "end": "2026-12-08T11:30:00Z",
}
CAPACITY = ({"kind": "on-demand"}, {"kind": "odcr", "reservation": "cr-0123456789abcdef0"}, BLOCK)
NETWORKS = ({"egress": "nat"}, {"egress": "endpoints"})
SWITCHES = ((False, False, 0), (True, False, 2), (False, True, 2), (True, True, 0))


def _environments() -> list[Environment]:
    """Every family at two sizes, p5.48xlarge at all; the other settings in turn."""
    made: list[Environment] = []
    for number, name in enumerate(INSTANCE_TYPES):
        sizes = SIZES if name == "p5.48xlarge" else (SIZES[number % 5], SIZES[(number + 2) % 5])
        for nodes, spares in sizes:
            turn = len(made)
            root, in_process, workers = SWITCHES[turn % len(SWITCHES)]
            training = {"recovery": {"in_process": in_process}, "data": {"num_workers": workers}}
            made.append(
                build_environment(
                    instance_type=name,
                    nodes=nodes,
                    spares=spares,
                    security={"root": root},
                    training=training,
                    kubernetes_version=KUBERNETES[turn % len(KUBERNETES)],
                    secrets=["wandb/api-key"] if turn % 4 == 1 else [],
                    capacity=CAPACITY[turn % len(CAPACITY)],
                    account="123456789012",
                    network=NETWORKS[turn % len(NETWORKS)],
                    file_system={"efa": turn % 2 == 0, "size_gib": 4800},
                )
            )
    return made


MATRIX = _environments()


def describe(environment: Environment) -> str:
    """A test's id."""
    security = "root" if environment.security.root else "user"
    restart = "in-process" if environment.training.recovery.in_process else "launcher"
    size = f"{environment.nodes}+{environment.spares}"
    return f"{environment.instance_type}-{size}-{security}-{restart}-{environment.kubernetes_version}"


@pytest.fixture
def environment() -> Environment:
    """Two p5.48xlarge with defaults."""
    return build_environment()


@pytest.fixture
def make_environment() -> MakeEnvironment:
    """Builds an environment from changed fields."""
    return build_environment


@pytest.fixture(params=MATRIX, ids=describe)
def any_environment(request: pytest.FixtureRequest) -> Environment:
    """Every environment of the matrix, one at a time."""
    value: Environment = request.param
    return value


def cluster_documents(environment: Environment) -> list[Manifest]:
    """What a cluster holds before the first run."""
    return manifests(cluster_charts(cdk8s.App(), environment, VOLUME))


def run_documents(environment: Environment, run: RunSpec) -> list[Manifest]:
    """What a submission adds."""
    return manifests(run_charts(cdk8s.App(), environment, run))


RUN = RunSpec("pretrain", 1, IMAGE)


@functools.cache
def _matrix_documents(number: int) -> list[Manifest]:
    return [*cluster_documents(MATRIX[number]), *run_documents(MATRIX[number], RUN)]


@pytest.fixture
def run() -> RunSpec:
    """The first submission of a run."""
    return RUN


@pytest.fixture
def documents(any_environment: Environment) -> list[Manifest]:
    """All objects of an environment of the matrix and one run in it."""
    return copy.deepcopy(_matrix_documents(MATRIX.index(any_environment)))


@pytest.fixture
def training(environment: Environment, run: RunSpec) -> dict[str, Manifest]:
    """The objects of a run in the default environment, by `Kind/name`."""
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in run_documents(environment, run)}
