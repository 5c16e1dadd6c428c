"""Processes that come from the pod's fork server, beside the same ones that Python starts anew."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainer.forked import SOCKET_VARIABLE
from trainer.forkserver import OF_A_POD, ForkServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PROJECT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, os, signal, subprocess, sys, threading, time
if sys.argv[1] == "show":
    files = {os.path.realpath(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")}
    print(json.dumps({
        "arguments": sys.argv[1:], "name": __name__, "colour": os.environ.get("COLOUR"), "directory": os.getcwd(),
        "sockets": sorted(f for f in files if "socket" in f), "threads": threading.active_count(),
        "blocked": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, set())],
        "imported": "torch" in sys.modules,
        "leads_its_session": os.getsid(0) == os.getpid(),
    }))
    print("complaint", file=sys.stderr)
    sys.exit(7)
if sys.argv[1] == "polite":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""

_left: list[psutil.Process] = []


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    while _left:
        with contextlib.suppress(psutil.NoSuchProcess):
            _left.pop().kill()


STARTS_A_THREAD = "import threading, time; threading.Thread(target=time.sleep, args=[60], daemon=True).start()\n"

Ask = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "a_program.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer(OF_A_POD)
    yield server
    server.close()


def asking(programs: Path, variables: dict[str, str]) -> Ask:
    path = os.pathsep.join([str(PROJECT), str(programs)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables}

    def ask(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "trainer.forked", "a_program", *arguments]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=programs
        )

    return ask


@pytest.fixture
def ask(programs: Path, server: ForkServer) -> Ask:
    return asking(programs, {"COLOUR": "blue", **server.variables()})


def shown(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    assert err.strip().endswith("complaint")
    result: dict[str, Any] = json.loads(out)
    return result


def pids(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The program's, and its child's."""
    assert process.stdout is not None
    found = [psutil.Process(int(number)) for number in process.stdout.readline().split()]
    _left.extend(found)
    return found


def all_gone(processes: list[psutil.Process], timeout_s: float = 5) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
            return True
        time.sleep(0.02)
    return False


def test_a_child_has_its_askers_surroundings_and_none_of_the_servers(ask: Ask, programs: Path) -> None:
    seen = shown(ask("show", "--more=1"))
    assert seen == {
        "arguments": ["show", "--more=1"],
        "name": "__main__",
        "colour": "blue",
        "directory": str(programs),
        "sockets": [],
        "threads": 1,
        "blocked": [],
        "imported": True,
        "leads_its_session": True,
    }


def test_without_a_server_the_same_program_runs_in_a_new_interpreter(programs: Path) -> None:
    for variables in ({}, {SOCKET_VARIABLE: str(programs / "nobody-listens")}):
        seen = shown(asking(programs, variables)("show"))
        assert (seen["arguments"], seen["imported"]) == (["show"], False)


def test_whoever_asked_ends_as_the_child_does(ask: Ask) -> None:
    program, _ = pids(process := ask("wait"))
    program.send_signal(signal.SIGABRT)
    assert process.wait(10) == -signal.SIGABRT


@pytest.mark.parametrize(("how", "code"), [("polite", 5), ("wait", -signal.SIGTERM)])
def test_sigterm_reaches_the_child(ask: Ask, how: str, code: int) -> None:
    program, _ = pids(process := ask(how))
    process.terminate()
    assert process.wait(10) == code
    assert all_gone([program])


def test_a_child_and_all_it_started_die_with_whoever_asked(ask: Ask) -> None:
    started = pids(process := ask("polite"))
    process.kill()
    assert all_gone(started)


def test_children_die_with_the_server_and_the_next_start_needs_none(programs: Path) -> None:
    server = ForkServer(OF_A_POD)
    ask = asking(programs, server.variables())
    program, _ = pids(process := ask("wait"))
    server.close()
    assert process.wait(10) == -signal.SIGKILL
    assert all_gone([program])
    assert not shown(ask("show"))["imported"]


def test_a_server_that_may_not_fork_says_so_and_is_done_without(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (programs / "sitecustomize.py").write_text(STARTS_A_THREAD)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), str(programs)]))
        server = ForkServer(OF_A_POD)
    assert not shown(asking(programs, server.variables())("show"))["imported"]
    server.close()
    assert "import torch has started 1 threads; processes are started without it" in capfd.readouterr().err


def test_children_outlive_an_import_after_which_nothing_may_be_forked(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (programs / "unfit.py").write_text("import time; time.sleep(1.5)\n" + STARTS_A_THREAD)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), str(programs)]))
        server = ForkServer(["torch", "unfit"])
    ask = asking(programs, server.variables())
    pids(early := ask("polite"))
    assert not shown(ask("show"))["imported"]
    early.terminate()
    assert early.wait(10) == 5
    server.close()
    assert "import unfit has started 1 threads" in capfd.readouterr().err


def test_an_asker_that_asks_for_nothing_does_no_harm(server: ForkServer, ask: Ask) -> None:
    (address,) = server.variables().values()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(b"no")
    assert shown(ask("show"))["imported"]
