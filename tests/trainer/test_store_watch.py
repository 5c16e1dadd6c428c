"""A store that falls silent is noticed; one that ends in an orderly way is not our business."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from trainer.resilience import store_watch
from trainer.resilience.store_watch import StoreWatch, kill_tree

pytestmark = pytest.mark.unit


@pytest.fixture(name="server")
def _server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def watched(server: socket.socket) -> tuple[StoreWatch, list[str], socket.socket]:
    said: list[str] = []
    watch = StoreWatch(f"127.0.0.1:{server.getsockname()[1]}", said.append)
    connection, _ = server.accept()
    return watch, said, connection


def test_a_connection_that_breaks_is_told_once(server: socket.socket) -> None:
    watch, said, connection = watched(server)
    time.sleep(0.5)  # a reset while it still connects would be met by connecting again
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()  # a reset: what a keepalive probe meets where the store's node has gone
    deadline_s = time.monotonic() + 20
    while not said and time.monotonic() < deadline_s:
        time.sleep(0.02)
    watch.close()
    assert len(said) == 1 and "silent" in said[0]


@pytest.mark.parametrize("closed_by_us", [True, False])
def test_an_orderly_end_is_told_once_nobody_has_left_by_then(server: socket.socket, closed_by_us: bool) -> None:
    watch, said, connection = watched(server)
    watch.close() if closed_by_us else connection.close()
    deadline_s = time.monotonic() + 20
    while any(t.name == "store-watch" for t in threading.enumerate()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert len(said) == (0 if closed_by_us else 1)
    connection.close()


def test_keepalive_gives_up_within_seconds(server: socket.socket) -> None:
    with socket.create_connection(server.getsockname()) as connection:
        store_watch._keep_alive(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        idle_s, interval_s, probes = (connection.getsockopt(socket.IPPROTO_TCP, name) for name in names)
    assert idle_s + interval_s * probes <= 10


def test_a_tree_is_killed_whole() -> None:
    code = (
        "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('up', flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "up\n"
    (child,) = psutil.Process(parent.pid).children()
    kill_tree(parent.pid)
    assert parent.wait(10) == -9
    child.wait(10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
