"""A cluster's own life: killed and started again, two side by side, nothing left behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from ports import free_port

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.testing import running_cluster
from ops.local.node import processes

pytestmark = pytest.mark.integration

Fields = dict[str, Any]
_FAST = 0.02


def _job(name: str, script: str, **spec: Any) -> Fields:
    container = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"metadata": {"name": name}, "spec": {"template": {"spec": pod}} | spec}


def _clients(cluster: LocalCluster) -> tuple[Any, Any]:
    api = cluster.api_client()
    return client.CoreV1Api(api), client.BatchV1Api(api)


def _until(what: Any, limit_s: float = 20.0) -> Any:
    deadline = time.monotonic() + limit_s
    while not (got := what()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return got


def _server_pid(cluster: LocalCluster) -> int:
    return int((cluster.kubeconfig.parent / "pid").read_text())


def _kill_server(cluster: LocalCluster) -> None:
    pid = _server_pid(cluster)
    os.kill(pid, signal.SIGKILL)
    _until(lambda: not cluster.is_running())


def _traces(environment: str) -> list[str]:
    """Everything on this machine that bears the environment's name."""
    short = environment[-6:]
    found = [f"process {pid}" for pid, _ in processes.marked(environment + "/")]
    for folder in ("/run/netns", "/dev/shm", "/tmp"):
        present = Path(folder).iterdir() if Path(folder).exists() else []
        found += [str(p) for p in present if p.name.startswith(("sf-", "steadfast-")) and short in p.name]
    groups = Path("/sys/fs/cgroup").glob(f"**/steadfast/{environment}*")
    return found + [str(g) for g in groups]


@pytest.fixture(params=["namespaces", "loopback"])
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of one node in each network mode."""
    if request.param == "namespaces" and os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with running_cluster(tmp_path / "env", time_scale=_FAST, network=request.param) as cluster:
        yield cluster


def test_start_twice_is_one_cluster_and_stop_twice_is_no_error(fresh: LocalCluster, tmp_path: Path) -> None:
    pid = _server_pid(fresh)
    again = LocalCluster(tmp_path / "env")
    assert again.is_running()
    fresh.restart()
    assert _server_pid(fresh) == pid
    again.stop()
    assert not fresh.is_running()
    fresh.stop()
    assert not (tmp_path / "env" / "kubernetes").exists()


def test_a_server_that_starts_while_somebody_asks_for_one_does_not_give_up(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "env", nodes=[], time_scale=_FAST) as cluster:
        _kill_server(cluster)
        lock = cluster.kubeconfig.parent / "lock"
        command = [sys.executable, "-m", "ops.local.kubernetes.daemon", str(tmp_path / "env")]
        with lock.open() as asking:
            fcntl.flock(asking, fcntl.LOCK_SH)
            server = subprocess.Popen(command, cwd=Path(__file__).parents[4], start_new_session=True)
            _until(lambda: server.poll() is not None or str(lock) in _open_files(server.pid))
        _until(lambda: server.poll() is not None or cluster.is_answering())
        assert server.poll() is None


def _open_files(pid: int) -> list[str]:
    names: list[str] = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(link))
    return names


def test_server_killed_and_started_again_goes_on_with_the_same_objects(fresh: LocalCluster) -> None:
    core, batch = _clients(fresh)
    script = "echo before; while [ ! -e $DONE ]; do sleep 0.05; done; exit 7"
    done = fresh.kubeconfig.parent / "done"
    batch.create_namespaced_job("default", _job("j", f"DONE={done}; {script}", backoffLimit=0))
    pod = _until(lambda: core.list_namespaced_pod("default", field_selector="status.phase=Running").items)[0]
    before = batch.read_namespaced_job("j", "default").metadata
    _kill_server(fresh)
    assert list(processes.marked(fresh.environment + "/"))
    done.touch()  # ends while nobody watches
    time.sleep(0.3)
    fresh.restart()
    core, batch = _clients(fresh)
    assert batch.read_namespaced_job("j", "default").metadata.uid == before.uid
    _until(lambda: (batch.read_namespaced_job("j", "default").status.failed or 0) == 1)
    ended = core.read_namespaced_pod(pod.metadata.name, "default")
    assert ended.metadata.uid == pod.metadata.uid
    assert ended.status.container_statuses[0].state.terminated.exit_code == 7
    assert core.read_namespaced_pod_log(pod.metadata.name, "default") == "before\n"


def test_server_killed_again_and_again_counts_every_pod_once(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "env", time_scale=_FAST) as cluster:
        _, batch = _clients(cluster)
        spec = {"completionMode": "Indexed", "completions": 6, "parallelism": 2, "backoffLimitPerIndex": 1}
        batch.create_namespaced_job("default", _job("j", "sleep 0.2; exit 1", **spec))
        for pause_s in (0.15, 0.4, 0.25):
            time.sleep(pause_s)
            _kill_server(cluster)
            cluster.restart()
        _, batch = _clients(cluster)
        status = _until(lambda: _failed(batch), 60)
        assert (status.failed, status.failed_indexes, status.active) == (12, "0-5", None)


def _failed(batch: Any) -> Any:
    status = batch.read_namespaced_job("j", "default").status
    return status if any(c.type == "Failed" for c in status.conditions or []) else None


def test_pods_of_a_dead_server_are_found_and_ended(fresh: LocalCluster) -> None:
    core, batch = _clients(fresh)
    # Daemonised twice over, in a session of its own: nothing but the mark and the group still ties it to the pod.
    script = "setsid sh -c 'trap \"\" TERM; sleep 300 & sleep 300' & exec sleep 300"
    batch.create_namespaced_job("default", _job("j", script))
    _until(lambda: core.list_namespaced_pod("default", field_selector="status.phase=Running").items)
    _until(lambda: len(list(processes.marked(fresh.environment + "/"))) >= 5)
    _kill_server(fresh)
    assert _traces(fresh.environment)
    fresh.stop()
    assert _traces(fresh.environment) == []


def test_a_taken_port_is_left_and_the_kubeconfig_follows(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "env", time_scale=_FAST) as cluster:
        port = json.loads((cluster.kubeconfig.parent / "server.json").read_text())["port"]
        _kill_server(cluster)
        with socket.create_server(("127.0.0.1", port)):
            cluster.restart()
            core, _ = _clients(cluster)
            assert core.read_namespace("default").metadata.name == "default"
            assert json.loads((cluster.kubeconfig.parent / "server.json").read_text())["port"] != port


def test_two_environments_side_by_side_do_not_meet(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path / "a" / "env", time_scale=_FAST) as first,
        running_cluster(tmp_path / "b" / "env", time_scale=_FAST) as second,
    ):
        assert first.environment != second.environment
        port = free_port()
        code = f"import socket; s = socket.create_server(('', {port})); print('up', flush=True); s.accept()"
        serve = f'exec python -c "{code}"'
        for cluster in (first, second):
            core, batch = _clients(cluster)
            batch.create_namespaced_job("default", _job("server", serve))
            pods = _until(
                lambda c=core: c.list_namespaced_pod("default", field_selector="status.phase=Running").items
            )
            _until(lambda c=core, n=pods[0].metadata.name: c.read_namespaced_pod_log(n, "default") == "up\n")
        first.stop()
        core, _ = _clients(second)
        assert core.list_namespaced_pod("default").items[0].status.phase == "Running"
        assert _traces(first.environment) == []
        assert _traces(second.environment)
    assert _traces(second.environment) == []


@pytest.mark.parametrize(("version", "keeps_its_start"), [("1.34", True), ("1.36", False)])
def test_a_suspended_job_follows_the_version_of_the_cluster(
    tmp_path: Path, version: str, keeps_its_start: bool
) -> None:
    with running_cluster(tmp_path / "env", time_scale=_FAST, kubernetes_version=version) as cluster:
        _, batch = _clients(cluster)
        batch.create_namespaced_job("default", _job("j", "exec sleep 60"))
        _until(lambda: batch.read_namespaced_job("j", "default").status.active)
        batch.patch_namespaced_job("j", "default", {"spec": {"suspend": True}})
        status = _until(lambda: (s := batch.read_namespaced_job("j", "default").status).conditions and s)
        assert [(c.type, c.status) for c in status.conditions] == [("Suspended", "True")]
        assert (status.start_time is not None) == keeps_its_start
        assert client.VersionApi(cluster.api_client()).get_code().minor == version.split(".")[1]


def test_50_jobs_in_a_row_leave_nothing_behind(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "env", time_scale=_FAST) as cluster:
        core, batch = _clients(cluster)
        pod = _job("x", "sleep 60 & exit 0")
        batch.create_namespaced_job("default", _job("first", "exit 0"))
        _until(lambda: batch.read_namespaced_job("first", "default").status.succeeded)
        batch.delete_namespaced_job("first", "default", propagation_policy="Background")
        _until(lambda: not core.list_namespaced_pod("default").items)
        empty = _traces(cluster.environment)
        descriptors = len(os.listdir(f"/proc/{_server_pid(cluster)}/fd"))
        pod["spec"]["template"]["spec"]["volumes"] = [{"name": "m", "emptyDir": {"medium": "Memory"}}]
        for number in range(50):
            pod["metadata"]["name"] = f"job-{number}"
            batch.create_namespaced_job("default", pod)
            _until(lambda n=number: batch.read_namespaced_job(f"job-{n}", "default").status.succeeded)
            batch.delete_namespaced_job(f"job-{number}", "default", propagation_policy="Background")
        _until(lambda: not core.list_namespaced_pod("default").items)
        _until(lambda: set(_traces(cluster.environment)) == set(empty))
        assert list((cluster.kubeconfig.parent / "pods").iterdir()) == []
        assert len(os.listdir(f"/proc/{_server_pid(cluster)}/fd")) <= descriptors + 5
        listening = subprocess.run(["ss", "-ltn"], capture_output=True, text=True, check=True).stdout
        port = json.loads((cluster.kubeconfig.parent / "server.json").read_text())["port"]
        assert f"127.0.0.1:{port} " in listening
    assert _traces(cluster.environment) == []


def test_a_service_deleted_in_the_foreground_goes(tmp_path: Path) -> None:
    """Its endpoints must not be written again while it goes: both would come and go for ever."""
    with running_cluster(tmp_path / "env", time_scale=_FAST) as cluster:
        core, batch = _clients(cluster)
        service = {"metadata": {"name": "s"}, "spec": {"selector": {"job-name": "j"}, "ports": [{"port": 80}]}}
        core.create_namespaced_service("default", service)
        batch.create_namespaced_job("default", _job("j", "sleep 60"))
        _until(lambda: core.list_namespaced_endpoints("default").items)
        core.delete_namespaced_service("s", "default", propagation_policy="Foreground")
        _until(lambda: not core.list_namespaced_service("default").items)
        assert not core.list_namespaced_endpoints("default").items
