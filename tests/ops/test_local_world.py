"""Several commands in one local world: it lasts for as long as one of them, or a run, needs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from typer.testing import CliRunner, Result

from k8s.names import ROLE_LABEL, RUN_LABEL, SUBMISSION_LABEL
from ops.errors import RefusedError
from ops.local.aws.local_aws import LocalAws
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.testing import running_cluster
from ops.local_world import local_world, running_world
from ops.options import Call
from ops.verbs import app
from ops.world import World

pytestmark = pytest.mark.integration

HOLD = """
import sys, time
from ops.local_world import local_world, running_world
from ops.options import Call
with local_world(Call.of("local", local=True)) as world:
    print("up", flush=True)
    time.sleep(120)
"""


@pytest.fixture(name="call")
def _call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    monkeypatch.setenv("STEADFAST_LOCAL", str(tmp_path))
    call = Call.of("local", local=True)
    before = dict(os.environ)
    yield call
    for name in set(os.environ) - set(before):  # the emulated AWS's
        del os.environ[name]
    os.environ.update(before)
    LocalAws(call.state / "aws").stop()
    LocalCluster(call.state).stop()


def until(what: Callable[[], Any], limit_s: float = 30.0) -> Any:
    deadline_s = time.monotonic() + limit_s
    while not (got := what()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return got


def steadfast(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def begin_run(world: World) -> None:
    """A Job as `submit` labels it, whose pod just goes on."""
    labels = {RUN_LABEL: "r", SUBMISSION_LABEL: "1", ROLE_LABEL: "trainer"}
    container = {"name": "trainer", "image": "none", "command": ["sleep", "600"]}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    body = {"metadata": {"name": "r-1", "labels": labels}, "spec": {"template": {"spec": pod}}}
    batch = client.BatchV1Api(LocalCluster(world.call.state).api_client())
    batch.create_namespaced_job(world.cluster.namespace, body)
    until(lambda: [pod for pod in world.cluster.pods("r-1") if pod.phase == "Running"])


def kill_server(local: LocalCluster) -> None:
    os.kill(int((local.kubeconfig.parent / "pid").read_text()), signal.SIGKILL)
    until(lambda: not local.is_running())


def test_the_last_of_two_commands_takes_the_world_away(call: Call) -> None:
    local = LocalCluster(call.state)
    with ExitStack() as second:
        with local_world(call):
            other = second.enter_context(local_world(call))
        assert local.is_running()
        assert other.cluster.jobs() == []
    assert not local.is_running() and not local.exists()


def test_a_refused_command_leaves_a_run_whose_server_was_killed(call: Call) -> None:
    local = LocalCluster(call.state)
    with local_world(call, keep=True) as world:
        begin_run(world)
    kill_server(local)
    with pytest.raises(RefusedError), local_world(call):
        raise RefusedError("run r is under way")
    [pod] = world.cluster.pods("r-1")
    assert (local.is_running(), pod.phase) == (True, "Running")


def test_a_run_whose_follower_was_killed_is_not_ended_by_the_next_command(call: Call) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        until(lambda: child.stdout.readline().strip() == "up")
        world = running_world(call)
        assert world is not None
        begin_run(world)
        child.kill()
    with local_world(call):
        pass
    assert [pod.phase for pod in world.cluster.pods("r-1")] == ["Running"]


def test_a_command_waits_for_a_server_that_has_only_begun(call: Call) -> None:
    with running_cluster(call.state, nodes=[]) as local, ThreadPoolExecutor() as threads:
        kill_server(local)
        root = local.kubeconfig.parent
        local.kubeconfig.unlink()
        (root / "server.json").unlink()
        settings = (root / "settings.json").rename(root / "kept.json")
        os.mkfifo(root / "settings.json")  # the first thing a server reads: there it waits, with its lock
        server = threads.submit(local.restart)
        until(local.is_running)
        world = threads.submit(running_world, call)
        try:
            with pytest.raises(TimeoutError):
                world.result(0.3)
        finally:
            (root / "settings.json").write_text(settings.read_text())
            settings.rename(root / "settings.json")
        server.result()
        found = world.result()
        assert found is not None and found.cluster.gpu_nodes() == []
    assert running_world(call) is None


@pytest.mark.long
def test_verbs_that_only_ask_the_emulated_aws_end_what_they_started(call: Call) -> None:
    local, aws = LocalCluster(call.state), LocalAws(call.state / "aws")
    for verb in ("check", "inventory"):
        assert steadfast(verb, "local", "--local").exit_code == 0
        assert not aws.is_running() and not local.exists()
    with local_world(call):  # with nodes of its own: nothing is deployed
        assert steadfast("inventory", "local", "--local").exit_code == 0
        assert aws.is_running()  # the other command may be using it
        with local_world(call) as world:
            assert len(world.cluster.gpu_nodes()) == call.environment.nodes + call.environment.spares
    assert not aws.is_running() and not local.exists()
