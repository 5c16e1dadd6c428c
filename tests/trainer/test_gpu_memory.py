"""Processes that keep a GPU after their rank is gone. The devices are files; the processes are real."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from nvidia_resiliency_ext.fault_tolerance.launcher import LocalElasticAgent as Agent

from trainer.events import Event
from trainer.launcher_log import event_in
from trainer.resilience import gpu_memory

pytestmark = pytest.mark.unit

HOLD = "import sys,time; opened = [open(name) for name in sys.argv[1:]]; print('open', flush=True); time.sleep(60)"
Hold = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia-uvm", "nvidiactl", "nvidia0", "nvidia3"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def hold(devices: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    """Starts a process that has devices open, of this pod or another."""
    monkeypatch.setenv(gpu_memory.POD, "this")
    started: list[subprocess.Popen[str]] = []

    def begin(*names: str, pod: str = "this") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLD, *(str(devices / name) for name in names)]
        process = subprocess.Popen(
            command, env={**os.environ, gpu_memory.POD: pod}, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_who_has_a_context_is_named_with_its_gpus(devices: Path, hold: Hold) -> None:
    process = hold("nvidia-uvm", "nvidiactl", "nvidia0", "nvidia3")
    hold("nvidiactl", "nvidia0")  # asks for the state of a GPU, as ft_launcher does itself
    (found,) = gpu_memory.holders(devices)
    assert f"pid {process.pid} " in found.words and f"child of {os.getpid()}" in found.words
    assert found.words.endswith(f"with {devices}/nvidia0, {devices}/nvidia3")


def test_this_pods_are_ended_and_others_are_only_named(
    devices: Path, hold: Hold, caplog: pytest.LogCaptureFixture
) -> None:
    own, other = hold("nvidia-uvm", "nvidia0"), hold("nvidia-uvm", "nvidia3", pod="other")
    gpu_memory.end_holders(devices)
    assert own.wait(5) == -9 and other.poll() is None
    assert f"pid {own.pid} " in caplog.text and f"pid {other.pid} " in caplog.text
    assert caplog.text.count("ended now") == 1


def test_nobody_to_be_seen_is_said_and_reaches_the_ledger(devices: Path, caplog: pytest.LogCaptureFixture) -> None:
    gpu_memory.end_holders(devices)
    (line,) = caplog.messages
    assert event_in(line) == (Event.GPU_MEMORY_HELD, {"detail": line}) and gpu_memory.NOBODY in line


@pytest.mark.parametrize("takes_s", [0.0, 0.4])
def test_only_a_wait_that_takes_long_looks_for_them(
    takes_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Agent, "_wait_for_gpu_memory_reclaim", lambda self, num_gpus: time.sleep(takes_s))
    monkeypatch.setattr(gpu_memory, "PATIENCE_S", 0.1)
    gpu_memory.watch()
    Agent._wait_for_gpu_memory_reclaim(SimpleNamespace(), 1)
    assert bool(caplog.messages) == (takes_s > 0)
