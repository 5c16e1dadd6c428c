"""Processes of pods, found by the mark in their environment: they may have detached from everything else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "STEADFAST_POD"
_END_S = 5.0


def mark_of(cluster: str, pod_uid: str) -> str:
    """The value of the variable `MARK`."""
    return f"{cluster}/{pod_uid}"


def marked(prefix: str) -> Iterator[tuple[int, str]]:
    """pid and mark of every process whose mark starts so. Only this user's processes can be read."""
    wanted = f"{MARK}={prefix}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for variable in variables:
            if variable.startswith(wanted):
                yield int(entry.name), variable.partition(b"=")[2].decode()


def kill_marked(prefix: str) -> int:
    """SIGKILL until nothing with such a mark is left; returns how many were met."""
    met: set[int] = set()
    deadline = time.monotonic() + _END_S
    while alive := [pid for pid, _ in marked(prefix) if not is_zombie(pid)]:
        for pid in alive:
            send(pid, signal.SIGKILL)
        met.update(alive)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {sorted(alive)} survive SIGKILL")
        time.sleep(0.01)
    return len(met)


def send(pid: int, number: signal.Signals) -> bool:
    """Sends a signal; False if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def is_zombie(pid: int) -> bool:
    """Ended, not yet reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def runs(pid: int, argument: str) -> bool:
    """The process exists and has this argument: its number was not given to another one."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return argument.encode() in arguments and not is_zombie(pid)
