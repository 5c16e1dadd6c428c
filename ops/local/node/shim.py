"""Stands between the kubelet and one container: sets the container up, waits for it, keeps its exit code.

It outlives the kubelet, so a server that was killed and started again finds its pods running and learns how they
ended. It runs as a plain script with the standard library alone: `python -I -S shim.py SPEC`, a few ms to start.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing itself would cost a quarter of the start
    from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_CHILD_SUBREAPER = 36
START_ERROR = 128
_REAP_S = 5.0


def main(spec_path: str) -> None:
    """Runs the container that the specification describes."""
    with open(spec_path) as file:  # noqa: PTH123 - pathlib would double the start time
        spec = json.load(file)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The kubelet stops containers by their own pid; what is sent to a terminal's group must not end the shim.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if spec["netns"]:
        enter_namespaces(libc, spec)
    error_read, error_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(error_read)
        become_container(spec, error_write)
    os.close(error_write)
    started = time.time()
    start_error = read_all(error_read)
    # Not before: until it is the command, the child still ignores what the shim ignores, SIGTERM too.
    write_atomically(spec["running_file"], {"shim": os.getpid(), "pid": child, "startedAt": started})
    code = wait_for(child)
    end_descendants(spec["cgroups"])
    if start_error:
        code = START_ERROR
    write_atomically(
        spec["exit_file"],
        {
            "exitCode": code,
            "startedAt": started,
            "finishedAt": time.time(),
            "startError": start_error,
            "oomKilled": oom_kills(spec["cgroups"]) > 0,
        },
    )


def enter_namespaces(libc: ctypes.CDLL, spec: dict[str, Any]) -> None:
    """The pod's network, its host name and its own files in /etc."""
    descriptor = os.open(spec["netns"], os.O_RDONLY)
    check(libc.setns(descriptor, CLONE_NEWNET))
    os.close(descriptor)
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS))
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    for source, target in spec["etc"].items():
        check(libc.mount(source.encode(), target.encode(), None, MS_BIND, None))
    name = spec["hostname"].encode()
    check(libc.sethostname(name, len(name)))


def check(result: int) -> None:
    """Raises what the C library reported."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_container(spec: dict[str, Any], error_write: int) -> None:
    """In the child: joins the cgroups, redirects the output, becomes the command. Never returns."""
    try:
        os.setsid()
        for group in spec["cgroups"]:
            with open(os.path.join(group, "cgroup.procs"), "w") as file:  # noqa: PTH118, PTH123
                file.write("0")
        log = os.open(spec["log_file"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(spec["cwd"])
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        os.write(error_write, f"{spec['argv'][0]}: {error}".encode())
        os._exit(START_ERROR)


def read_all(descriptor: int) -> str:
    """What the child reported before it became the command; nothing once that has worked."""
    text = b""
    while block := os.read(descriptor, 4096):
        text += block
    os.close(descriptor)
    return text.decode(errors="replace")


def wait_for(child: int) -> int:
    """The container's exit code; 128 + n for signal n. Reaps orphaned descendants on the way."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def end_descendants(groups: list[str]) -> None:
    """A container ends with its first process: whatever it has left behind goes with it, detached or not."""
    for group in groups:
        kill_file = os.path.join(group, "cgroup.kill")  # noqa: PTH118
        if os.path.exists(kill_file):  # noqa: PTH110
            with open(kill_file, "w") as file:  # noqa: PTH123
                file.write("1")
    for pid in children():
        kill_tree(pid)
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(0.005)
            for left in children():
                kill_tree(left)


def children(of: int | None = None) -> list[int]:
    """pids of the direct children."""
    path = f"/proc/{of or os.getpid()}/task/{of or os.getpid()}/children"
    try:
        with open(path) as file:  # noqa: PTH123
            return [int(p) for p in file.read().split()]
    except OSError:
        return []


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and all below it; what escapes becomes a child of the shim and is met again."""
    below = children(pid)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    for child in below:
        kill_tree(child)


def oom_kills(groups: list[str]) -> int:
    """How many processes the kernel killed for the container's memory limit."""
    total = 0
    for group in groups:
        for name in ("memory.oom_control", "memory.events"):
            try:
                with open(os.path.join(group, name)) as file:  # noqa: PTH118, PTH123
                    counts = dict(line.split() for line in file)
            except OSError:
                continue
            total += int(counts.get("oom_kill", 0))
    return total


def write_atomically(path: str, data: dict[str, Any]) -> None:
    """A reader sees all of it or nothing."""
    with open(path + ".new", "w") as file:  # noqa: PTH123
        json.dump(data, file)
    os.replace(path + ".new", path)  # noqa: PTH105


if __name__ == "__main__":
    main(sys.argv[1])
