"""One synthesis of a whole matrix of environments, shared by the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from environments.environment import Environment, InvalidEnvironmentError, find, load, names, parse
from environments.instance_types import INSTANCE_TYPES
from environments.versions import KUBERNETES
from infra.templates import Templates

RESERVATION = "cr-0123456789abcdef0"
CAPACITY: dict[str, dict[str, Any]] = {
    "on-demand": {"kind": "on-demand"},
    "odcr": {"kind": "odcr", "reservation": RESERVATION, "placement_group": "theirs"},
    "capacity-block": {
        "kind": "capacity-block",
        "reservation": RESERVATION,
        "start": "2027-03-01T11:30:00Z",
        "end": "2027-03-15T11:30:00Z",
    },
}
AXES: dict[str, tuple[Any, ...]] = {
    "instance_type": tuple(INSTANCE_TYPES),
    "capacity": tuple(CAPACITY),
    "nodes": (1, 2, 8, 64),
    "endpoint": ("public", "cidr", "private"),
    "efa": (False, True),
    "egress": ("nat", "endpoints"),
    "plugins": ("by-stack", "by-cli"),
    "interfaces": ("recommended", "classic"),
    "kubernetes_version": KUBERNETES,
}
Choice = dict[str, Any]


def environment_of(choice: Choice, name: str) -> Environment:
    """The environment of one point of the matrix. Raises InvalidEnvironmentError where a rule forbids it."""
    ranks = choice["nodes"] * INSTANCE_TYPES[choice["instance_type"]].gpus
    region = "us-east-2" if choice["instance_type"] == "p5e.48xlarge" else "us-east-1"
    fields: dict[str, Any] = {
        "name": name,
        "account": "111122223333",
        "region": region,
        "availability_zone": f"{region}b",
        "instance_type": choice["instance_type"],
        "interfaces": choice["interfaces"],
        "nodes": choice["nodes"],
        "capacity": CAPACITY[choice["capacity"]],
        "kubernetes_version": choice["kubernetes_version"],
        "endpoint": choice["endpoint"],
        "endpoint_cidrs": ["198.51.100.0/24"] if choice["endpoint"] == "cidr" else [],
        "plugins": choice["plugins"],
        "network": {"egress": choice["egress"]},
        "file_system": {"efa": choice["efa"], "size_gib": 4800},
        "access": {
            "admins": ["arn:aws:iam::111122223333:role/admin"],
            "researchers": ["arn:aws:iam::111122223333:role/researcher"],
        },
        "secrets": ["team/token"] if choice["egress"] == "endpoints" else [],
        "archive": {"codebuild": choice["endpoint"] == "private"},
        "permissions_boundary": "arn:aws:iam::111122223333:policy/boundary" if choice["efa"] else None,
        "training": {"data": {"global_batch_size": ranks}},
    }
    return parse(fields, name)


def valid(choice: Choice) -> bool:
    """Whether the rules allow this point."""
    try:
        environment_of(choice, "m")
    except InvalidEnvironmentError:
        return False
    return True


def pairs_of(choice: Choice) -> set[tuple[str, str]]:
    """Every two choices that this point brings together."""
    chosen = [f"{axis}={value}" for axis, value in choice.items()]
    return set(combinations(chosen, 2))


def all_pairs() -> list[Choice]:
    """Few points in which every allowed pair of choices occurs: greedy, and the same each time."""
    points = [dict(zip(AXES, values, strict=True)) for values in product(*AXES.values())][::11]
    points = [point for point in points if valid(point)]
    pairs = [pairs_of(point) for point in points]
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(range(len(points)), key=lambda index: len(pairs[index] & missing))
        missing -= pairs[best]
        chosen.append(points[best])
    return chosen


@pytest.fixture(scope="session")
def missing_pairs() -> set[tuple[str, str]]:
    """Pairs of choices that occur nowhere in the matrix."""
    every: set[tuple[str, str]] = set()
    for first, second in combinations(AXES, 2):
        every |= {(f"{first}={one}", f"{second}={two}") for one, two in product(AXES[first], AXES[second])}
    return every - set().union(*map(pairs_of, all_pairs()))


@dataclass(frozen=True)
class Matrix:
    """What was synthesized."""

    folder: Path
    environments: dict[str, Environment]
    report: dict[str, Any]
    by_name: dict[str, Templates]

    def templates(self, name: str) -> Templates:
        return self.by_name[name]

    def region_of(self, path: Path) -> str:
        return self.environments[path.name.removesuffix(".template.json").rpartition("-")[0]].region

    def each(self) -> Iterator[tuple[Environment, Templates]]:
        for name, environment in self.environments.items():
            yield environment, self.templates(name)


@pytest.fixture(scope="session")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """All pairs and the examples."""
    return synthesize(matrix_environments(), tmp_path_factory.mktemp("matrix"))


def matrix_environments() -> dict[str, Environment]:
    """By name: all pairs, then the examples."""
    pairs = {f"m{number}": environment_of(choice, f"m{number}") for number, choice in enumerate(all_pairs())}
    return pairs | {name: load(find(name)) for name in names()}


def synthesize(environments: dict[str, Environment], folder: Path) -> Matrix:
    """All of them in one app, checked by CDK's validator and cdk-nag."""
    # Here, so that unit tests of this folder do not start jsii.
    import aws_cdk as cdk
    import cdk_nag

    from infra.app import context
    from infra.checks import acknowledge
    from infra.stacks import add_stacks

    app = cdk.App(outdir=str(folder), analytics_reporting=False, post_cli_context=context())
    for environment in environments.values():
        add_stacks(app, environment)
    acknowledge(app)
    cdk.Validations.of(app).add_plugins(cdk_nag.AwsSolutionsChecks())
    try:
        app.synth()
    except RuntimeError as error:
        if "ValidationFailed" not in str(error):
            raise
    report = json.loads((folder / "validation-report.json").read_text())
    return Matrix(folder, environments, report, {name: Templates.read(folder, name) for name in environments})
