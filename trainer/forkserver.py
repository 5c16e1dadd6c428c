"""A process of the pod that has imported what a rank imports, and forks ranks and ft_launcher on request.

    python -m trainer.forkserver PARENT FD MODULE …        FD: a listening socket; MODULE: to be imported

Imports are most of what a new process takes: 3 s on two cores, 12 s on some hosts with a GPU, at each restart,
while every GPU of the job waits. `trainer.launch` starts the server with the pod; `trainer.forked` is what takes
the place of `python -m MODULE` in a command line. Without a server that module starts Python anew, as before.

The server itself runs no tensor operation, has one thread and no CUDA: a child finds what a fresh process would.
It takes no SIGTERM, which reaches its children through those who asked for them, and dies with `trainer.launch`;
its children die with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.forked import SOCKET_VARIABLE, Request, receive_request, start_anew
from trainer.parent_death import die_with_parent

OF_THE_LAUNCHER = ("torch", "torch.distributed.run", "nvidia_resiliency_ext.fault_tolerance")
OF_A_RANK = ("trainer.early", "trainer.attempt", "trainer.process", "trainer.resilience.in_process")
"""All that `trainer.train` imports. Not the module itself, which a child runs as its main module."""
OF_A_POD = (*OF_THE_LAUNCHER, *OF_A_RANK)
"""In this order: ft_launcher starts and looks for the others while the rest is imported."""
OF_THE_STORE = ("nvidia_resiliency_ext.fault_tolerance.launcher",)
"""What nvrx-control imports."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For the imports: OpenBLAS starts a thread a core when it is loaded."""
NOT_FOR_THE_SERVER = {signal.SIGTERM, signal.SIGINT}
"""Blocked rather than ignored: a child that gets one before it can handle it ends, as a fresh process would."""

BACKLOG = 64
"""Of the fork server: more than the GPUs of any host."""
PATIENCE_S = 10.0
"""For the rest of a request that has begun."""


class ForkServer:
    """A server process as its owner sees it: it imports `modules` while the rest of the pod starts."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules
        self._directory = Path(tempfile.mkdtemp(prefix="steadfast-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._ensure()

    @property
    def _address(self) -> Path:
        return self._directory / "socket"

    def variables(self) -> dict[str, str]:
        """For those who want their processes from it; starts it if it does not run. None once it is closed."""
        if self._closed:
            return {}
        self._ensure()
        return {SOCKET_VARIABLE: str(self._address)}

    def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:  # here: who asks before it serves must not be refused
            listener.bind(str(self._address))
            listener.listen(BACKLOG)
            server = [sys.executable, "-m", "trainer.forkserver", str(os.getpid()), str(listener.fileno())]
            self._process = subprocess.Popen([*server, *self._modules], pass_fds=[listener.fileno()])

    def close(self) -> None:
        """End it, and what still runs of its children. Processes are started without it then."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)


@dataclass
class _Child:
    pid: int
    pidfd: int
    asker: socket.socket


class Server:
    """Forks a child a request, tells its asker how it ended, and ends it when its asker is gone."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._answer)
        self._children: list[_Child] = []

    def serve(self, modules: Sequence[str]) -> Request:
        """Returns in each child, with what it was asked to run, and never in the server.

        Imports between two requests, and without collecting (`trainer.early` says why).
        """
        to_import = list(modules)
        while True:
            if to_import and (problem := _import(to_import.pop(0))):
                print(f"forkserver: {problem}; processes are started without it", file=sys.stderr)
                self._selector.unregister(self._listener)
                self._listener.close()  # those who wait are told by that, children stay
                to_import.clear()
            if self._listener.fileno() < 0 and not self._children:
                sys.exit(1)
            for key, _ in self._selector.select(0 if to_import else None):
                action: Callable[[], Request | None] = key.data
                if (request := action()) is not None:
                    return request

    def _answer(self) -> Request | None:
        asker, _ = self._listener.accept()
        asker.settimeout(PATIENCE_S)
        request = receive_request(asker)
        if request is None:
            asker.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._forget_all()
            asker.close()
            return request
        request.close()
        child = _Child(pid, os.pidfd_open(pid), asker)
        self._children.append(child)
        _send(asker, {"pid": pid})
        self._selector.register(child.pidfd, selectors.EVENT_READ, lambda: self._ended(child))
        self._selector.register(asker, selectors.EVENT_READ, lambda: self._asker_left(child))
        return None

    def _forget_all(self) -> None:
        """In a child: none of this is its own."""
        self._selector.close()
        self._listener.close()
        for child in self._children:
            child.asker.close()
            os.close(child.pidfd)

    def _asker_left(self, child: _Child) -> None:
        """Whoever asked has been killed: so is what it stood for, and all that descends from it."""
        from trainer.resilience.store_watch import kill_tree

        if child in self._children:  # else it ended in the same moment
            self._selector.unregister(child.asker)
            kill_tree(child.pid)

    def _ended(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        _send(child.asker, {"exit": os.waitstatus_to_exitcode(status)})
        self._selector.unregister(child.pidfd)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.asker)
        os.close(child.pidfd)
        child.asker.close()
        self._children.remove(child)


def _import(module: str) -> str | None:
    """What forbids to fork from now on."""
    gc.disable()  # each time: trainer.early enables it
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    gc.freeze()
    threads = len(list(Path("/proc/self/task").iterdir()))
    return None if threads == 1 else f"import {module} has started {threads - 1} threads"


def _send(asker: socket.socket, message: dict[str, int]) -> None:
    with contextlib.suppress(OSError):
        asker.sendall(json.dumps(message).encode() + b"\n")


def become(request: Request, server: int) -> None:
    """Make this child what a fresh process with the asker's environment would be, and run the module in it."""
    gc.enable()
    os.setsid()
    die_with_parent(server)
    for target, fd in enumerate(request.fds):
        os.dup2(fd, target)
    request.close()
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = [request.module, *request.arguments]
    python_path = filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [request.directory, *(entry for entry in python_path if entry not in sys.path)]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    _name(request)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOT_FOR_THE_SERVER)
    _start_anew_if_cuda_was_used(request)
    _use_threads_of(request.environment)
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


def _name(request: Request) -> None:
    """What `top` and `ps -e` show: the kernel keeps 15 characters."""
    rank = request.environment.get("RANK")
    name = request.module if rank is None else f"rank{rank}.{request.module}"
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name[:15])


def _use_threads_of(environment: dict[str, str]) -> None:
    """OpenMP has read the server's environment, not this one."""
    import torch

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))


def _start_anew_if_cuda_was_used(request: Request) -> None:
    import torch

    if torch.cuda._is_in_bad_fork():
        print("forkserver: an import has used CUDA, which does not survive a fork; starting anew", file=sys.stderr)
        start_anew(request.module, request.arguments)


def main(parent: str, fd: str, *modules: str) -> None:
    """Import and serve until killed; in a child, run what was asked for."""
    die_with_parent(int(parent))
    me = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_THE_SERVER)
    os.environ.update(ONE_THREAD)
    become(Server(socket.socket(fileno=int(fd))).serve(modules), me)


if __name__ == "__main__":
    main(*sys.argv[1:])
