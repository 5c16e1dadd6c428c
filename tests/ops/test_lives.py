"""Whole lives by the command: the demo, Ctrl-C in the middle of a run, an environment on the emulated AWS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.local.aws.local_aws import LocalAws
from ops.local.kubernetes.cluster import LocalCluster

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1500)]

STEADFAST = Path(sys.executable).parent / "steadfast"
BUCKETS_TOLERANCE = 1e-3


@pytest.fixture(name="state")
def _state(tmp_path: Path) -> Iterator[Path]:
    state = tmp_path / "s"
    yield state
    found = left_behind(state)
    for environment in {path.parent for name in ("aws", "kubernetes") for path in state.glob(f"*/{name}")}:
        LocalAws(environment / "aws").stop()
        LocalCluster(environment).stop()
    assert found == [], "processes of this test are still there"


def environ(state: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {**kept, "STEADFAST_LOCAL": str(state)}


def steadfast(state: Path, *arguments: str, code: int = 0) -> Any:
    """The verb's JSON; fails the test on any other exit code."""
    done = subprocess.run(
        [STEADFAST, *arguments, "--json"],
        env=environ(state),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def left_behind(state: Path) -> list[str]:
    """Processes that name the state directory in their command line or work on its files."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        command = " ".join(process.info["cmdline"] or [])
        variables = process.info["environ"] or {}
        if process.pid != os.getpid() and (
            str(state) in command or str(state) in variables.get("STEADFAST_RUN_DIR", "")
        ):
            found.append(f"{process.pid}: {command}")
    return found


def test_the_demo_lives_a_whole_life_and_leaves_nothing_behind(state: Path) -> None:
    result = steadfast(state, "demo")
    assert result["problems"] == []
    control, faulted = result["control"]["summary"], result["faulted"]["summary"]
    assert faulted["steps"]["done"] == faulted["steps"]["target"] >= 60
    assert faulted["params_sha256"] == control["params_sha256"]
    assert faulted["final_loss"] == control["final_loss"]
    assert [(fault["class"], fault["recovered"]) for fault in faulted["faults"]] == [
        ("sigkill", True),
        ("exception", True),
    ]
    assert [fault["layer"] for fault in faulted["faults"]] == ["launcher", "in_process"]
    assert all(fault["lost_steps"] < 10 for fault in faulted["faults"])
    assert sum(faulted["buckets_s"].values()) == pytest.approx(faulted["wall_s"], rel=BUCKETS_TOLERANCE)
    assert faulted["buckets_s"]["unknown"] <= 0.01 * faulted["wall_s"]
    assert faulted["t_ref"]["n"] >= 40 and 0 < faulted["goodput"] < 1
    assert faulted["checkpoint"]["saves"] >= 8
    report = Path(result["faulted"]["report"])
    assert {"summary.json", "report.html"} <= {path.name for path in report.iterdir()}


def submitted(state: Path, run: str, steps: int) -> subprocess.Popen[str]:
    """A command that follows its run."""
    return subprocess.Popen(
        [STEADFAST, "submit", "local", "--local", "--run", run, "--steps", str(steps)],
        env=environ(state),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_ranks(child: subprocess.Popen[str], state: Path, run: str) -> None:
    events = state / "local" / "fsx" / "runs" / run / "events"
    deadline_s = time.monotonic() + 180
    while not list(events.glob("rank-*")):
        assert time.monotonic() < deadline_s and child.poll() is None
        time.sleep(0.2)


def end(child: subprocess.Popen[str], number: signal.Signals) -> str:
    """What an interrupted command said; it must end well."""
    try:
        os.killpg(child.pid, number)
        said, _ = child.communicate(timeout=60)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 130, said
    assert "Traceback" not in said and said.rstrip().endswith("steadfast: stopped")
    return said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_or_a_closed_terminal_ends_a_run_and_everything_with_it(
    state: Path, number: signal.Signals
) -> None:
    child = submitted(state, "cut", 5000)
    wait_for_ranks(child, state, "cut")
    end(child, number)
    assert left_behind(state) == []


@pytest.mark.parametrize("after_s", [0.1, 0.4, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0])
def test_ctrl_c_during_start_up_leaves_nothing(state: Path, after_s: float) -> None:
    child = submitted(state, "cut", 5000)
    time.sleep(after_s)
    end(child, signal.SIGINT)
    assert left_behind(state) == []


def test_two_runs_at_once_and_ctrl_c_ends_one(state: Path) -> None:
    first = submitted(state, "first", 5000)
    wait_for_ranks(first, state, "first")
    second = submitted(state, "second", 25)
    deadline_s = time.monotonic() + 60
    while not (state / "local" / "fsx" / "runs" / "second" / "run.json").exists():
        assert time.monotonic() < deadline_s and second.poll() is None
        time.sleep(0.2)
    end(first, signal.SIGINT)
    said, _ = second.communicate(timeout=180)
    assert second.returncode == 0, said
    assert left_behind(state) == []


def test_an_environment_lives_on_the_emulated_aws(state: Path, tmp_path: Path) -> None:
    name = "life"
    file = Path(steadfast(state, "clone", "local", name, "--folder", str(tmp_path))["file"])
    findings = steadfast(state, "check", str(file), "--local")["findings"]
    assert not [finding for finding in findings if finding["state"] == "failed"]
    outputs = steadfast(state, "deploy", str(file), "--local", "--yes")["outputs"]
    assert sorted(outputs) == ["archive", "capacity", "cluster", "network", "storage"]
    refused = steadfast(state, "submit", str(file), "--local", "--run", "early", code=3)
    assert "scale" in refused["error"]["fix"]
    assert steadfast(state, "scale", str(file), "2", "--local", "--yes")["nodes"] == 2
    kinds = {item["kind"] for item in steadfast(state, "inventory", str(file), "--local")["items"]}
    assert {"EKS cluster", "node group", "file system", "instance", "VPC", "bucket"} <= kinds
    run = steadfast(state, "submit", str(file), "--local", "--run", "first", "--steps", "25")
    assert run["end"] == "reached" and run["summary"]["steps"]["done"] == 25
    assert [item["run"] for item in steadfast(state, "list", str(file), "--local")["runs"]] == ["first"]
    assert steadfast(state, "scale", str(file), "0", "--local", "--yes")["nodes"] == 0
    steadfast(state, "archive", str(file), "--local")
    deleted = steadfast(state, "destroy", str(file), "--local", "--yes")["deleted"]
    assert not [item for item in deleted if item["kept"]]
    remaining = steadfast(state, "inventory", str(file), "--local")["items"]
    assert {item["kind"] for item in remaining} == {"stack", "bucket", "image repository"}
    assert all(item["kept"] for item in remaining)
    steadfast(state, "destroy", str(file), "--local", "--yes", "--purge")
    assert steadfast(state, "inventory", str(file), "--local")["items"] == []
    steadfast(state, "destroy", str(file), "--local", "--yes")
    assert (state / "reports" / name / "first" / "summary.json").exists()
