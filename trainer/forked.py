"""`python -m trainer.forked MODULE ARGUMENT …`: `python -m MODULE ARGUMENT …` by way of the pod's fork server.

This process stands for the one that the server forks: it passes on signals, ends as the other ends, and the
other is killed when this one is. It imports next to nothing: 30 ms. Where STEADFAST_FORKSERVER names no server
that answers, it becomes `python -m MODULE` itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

from trainer.parent_death import die_with_parent

SOCKET_VARIABLE = "STEADFAST_FORKSERVER"
STANDARD_STREAMS = (0, 1, 2)
_LENGTH_BYTES = 8
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True)
class Request:
    """What a child of the server is to run, and in what surroundings."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    fds: tuple[int, ...]
    """Its standard streams."""

    def close(self) -> None:
        """Of this process' copies."""
        for fd in self.fds:
            os.close(fd)


def send_request(connection: socket.socket, module: str, arguments: list[str]) -> None:
    """Ask for `module` in this process' environment, directory and standard streams."""
    body = json.dumps([module, arguments, dict(os.environ), str(Path.cwd())]).encode()
    socket.send_fds(connection, [len(body).to_bytes(_LENGTH_BYTES, "big")], list(STANDARD_STREAMS))
    connection.sendall(body)


def receive_request(connection: socket.socket) -> Request | None:
    """None if the asker has left, or fallen silent, before it had asked."""
    fds: list[int] = []
    body, length = b"", -1
    with contextlib.suppress(OSError):
        header, fds, _, _ = socket.recv_fds(connection, _LENGTH_BYTES, len(STANDARD_STREAMS))
        length = int.from_bytes(header, "big")
        with connection.makefile("rb") as file:
            body = file.read(length)
    if len(fds) != len(STANDARD_STREAMS) or len(body) != length:
        for fd in fds:
            os.close(fd)
        return None
    module, arguments, environment, directory = json.loads(body)
    return Request(module, arguments, environment, directory, tuple(fds))


def start_anew(module: str, arguments: list[str]) -> NoReturn:
    """Become a new interpreter that runs `module`."""
    os.execv(sys.executable, [sys.executable, "-u", "-m", module, *arguments])


def stand_for(replies: IO[bytes]) -> NoReturn:
    """Pass signals on to the process that the server has forked, and end as it ends."""
    pid = int(json.loads(replies.readline())["pid"])

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended: the next line tells how
            os.kill(pid, number)  # not its group: ft_launcher's monitors must not hear a SIGTERM meant for it

    for number in _FORWARDED:
        signal.signal(number, forward)
    line = replies.readline()
    _end_alike(int(json.loads(line)["exit"]) if line else -signal.SIGKILL)


def _end_alike(code: int) -> NoReturn:
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the other one has dumped its core already
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)  # a signal that does not end


def main(module: str, *arguments: str) -> NoReturn:
    """Never returns."""
    die_with_parent()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.environ[SOCKET_VARIABLE])
        send_request(connection, module, list(arguments))
        replies = connection.makefile("rb")
        first = replies.peek(1)
    except (KeyError, OSError):
        first = b""
    if not first:
        connection.close()
        start_anew(module, list(arguments))
    stand_for(replies)


if __name__ == "__main__":
    main(*sys.argv[1:])
