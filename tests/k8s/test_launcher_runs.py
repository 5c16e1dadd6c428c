"""The manifest's own command lines under NVRx 0.7.0: three nodes as processes, one of them a spare."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ports import free_port

from k8s.bandwidth_check import check_command
from k8s.launcher_command import control_command, launcher_command

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(280)]
MODULE = "nvidia_resiliency_ext.fault_tolerance"
PROBE = """
import json, os, pathlib, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
where = pathlib.Path(os.environ["STEADFAST_RUN_DIR"])
seen = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")} | {"node": os.environ["POD_IP"]}
(where / f"seen.{time.time_ns()}").write_text(json.dumps(seen))
done = torch.zeros(1)
while not done:
    done.fill_((where / "go").exists())
    dist.all_reduce(done, dist.ReduceOp.MAX)
    time.sleep(0.05)
"""


def expand(command: list[str], variables: dict[str, str]) -> list[str]:
    """As a kubelet does before it starts a container."""
    return [re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], item) for item in command]


class Nodes:
    """One nvrx-control and several launchers, each in a process group of its own."""

    def __init__(self, environment: Any, folder: Path) -> None:
        self.environment, self.folder, self.port = environment, folder, free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "probe.py").write_text(PROBE)

    def start(self, name: str, module: str, command: list[str], address: str, index: int = -1) -> None:
        variables = {
            "GROUP_RANK": str(index),
            "POD_IP": address,
            "STEADFAST_RUN_DIR": str(self.folder),
            "STEADFAST_STORE_ENDPOINT": f"127.0.0.1:{self.port}",
            "STEADFAST_STORE_PORT": str(self.port),
        }
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", f"{MODULE}.{module}", *expand(command, variables)],
            env={**os.environ, **variables, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"},
            stdout=(self.folder / f"{name}.log").open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def start_all(self) -> None:
        self.start("control", "control_plane", control_command(self.environment, "r-1"), "127.0.0.1")
        command = [*launcher_command(self.environment, "r-1")[:-1], "probe"]
        for index in range(3):
            # The first index has the highest address, so that order by address would show.
            self.start(f"node-{index}", "launcher", command, f"127.0.0.{4 - index}", index)

    def kill(self, name: str) -> None:
        parent = psutil.Process(self.processes[name].pid)
        for process in [parent, *parent.children(recursive=True)]:
            process.kill()

    def seen(self) -> list[dict[str, str]]:
        return [json.loads(path.read_text() or "{}") for path in sorted(self.folder.glob("seen.*"))]

    def wait_for(self, number: int, limit_s: float) -> list[dict[str, str]]:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            found = [item for item in self.seen() if item]
            if len(found) >= number:
                return found
            time.sleep(0.1)
        logs = {path.name: path.read_text()[-1500:] for path in self.folder.glob("*.log")}
        raise AssertionError(f"{number} starts expected, saw {self.seen()}; {logs}")

    def codes(self, limit_s: float) -> dict[str, int]:
        deadline = time.monotonic() + limit_s
        return {
            name: process.wait(max(0.1, deadline - time.monotonic())) for name, process in self.processes.items()
        }

    def end(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def nodes(make_environment: Any, tmp_path: Path) -> Iterator[Nodes]:
    (tmp_path / "launcher").mkdir()
    environment = make_environment(instance_type="p5.4xlarge", nodes=2, spares=1)
    made = Nodes(environment, tmp_path)
    yield made
    made.end()


def test_the_first_node_may_die_and_the_spare_takes_its_place(nodes: Nodes) -> None:
    nodes.start_all()
    first = nodes.wait_for(2, 100)
    ranks = {int(item["RANK"]): item for item in first}
    assert {item["WORLD_SIZE"] for item in first} == {"2"}
    assert ranks[0]["node"] > ranks[1]["node"], "ordered by index, not by address"
    assert ranks[0]["MASTER_ADDR"] == ranks[0]["node"], "the pod's address, not a host name"

    dead = f"node-{4 - int(ranks[0]['node'].rsplit('.', 1)[1])}"
    nodes.kill(dead)
    after = nodes.wait_for(4, 90)[2:]
    assert sorted(item["RANK"] for item in after) == ["0", "1"]
    assert ranks[0]["node"] not in {item["node"] for item in after}

    (nodes.folder / "go").touch()
    codes = nodes.codes(60)
    assert codes.pop(dead) == -signal.SIGKILL
    assert set(codes.values()) == {0}, codes
    cycles = list((nodes.folder / "launcher").glob("cycle_info.r-1.*"))
    assert cycles, "nvrx-control writes cycle information"


def test_the_bandwidth_check_runs_on_two_nodes(make_environment: Any, tmp_path: Path) -> None:
    environment = make_environment(instance_type="p5.4xlarge", nodes=2)
    port, processes = str(free_port()), []
    for index in range(2):
        variables = {
            "JOB_COMPLETION_INDEX": str(index),
            "STEADFAST_CHECK_HOST": "127.0.0.1",
            "STEADFAST_STORE_PORT": port,
            "STEADFAST_BARS": "{}",
            "TMPDIR": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "torch.distributed.run", *expand(check_command(environment), variables)]
        processes.append(subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE))
    outputs = [process.communicate(timeout=200)[0].decode() for process in processes]
    (line,) = [line for line in "".join(outputs).splitlines() if '"bandwidth"' in line]
    rows = json.loads(line)["bandwidth"]
    assert rows and all(row["bus_gb_s"] > 0 for row in rows)
    assert [process.returncode for process in processes] == [0 if all(row["met"] for row in rows) else 1] * 2
