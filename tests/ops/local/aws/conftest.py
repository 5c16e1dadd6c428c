"""One emulated AWS for all modules of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from whole_stack import BASE, leftovers

from ops.local.aws.local_aws import LocalAws
from ops.local.aws.settings import Settings
from ops.local.aws.testing import TIME_SCALE, World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """An emulated AWS for all modules: starting one takes seconds, and each module leaves nothing in it."""
    aws = LocalAws(tmp_path_factory.mktemp("aws"))
    aws.start(Settings(time_scale=TIME_SCALE))
    yield World(aws)
    aws.stop()
    assert not aws.is_running()


@pytest.fixture(scope="module")
def deployed(world: World) -> Iterator[World]:
    """The whole stack, and at the end nothing of it."""
    assert world.deploy("all", BASE) == "CREATE_COMPLETE", world.reasons("all", "CREATE_FAILED")
    yield world
    assert world.delete("all") == "DELETE_COMPLETE", world.reasons("all", "DELETE_FAILED")
    assert leftovers(world) == {}


@pytest.fixture(autouse=True)
def no_failures_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test's failures on demand end with it."""
    yield
    if "world" in request.fixturenames:
        request.getfixturevalue("world").fail()


@pytest.fixture(scope="session")
def project_root() -> Path:
    """Where cdk.json and node_modules lie."""
    return Path(__file__).parents[4]
