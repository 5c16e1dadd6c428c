"""Notices a store that is gone without a goodbye, as when its node dies.

TCPStore reads without a timeout and without keepalive: ranks and ft_launcher would wait for ever on sockets that
nobody answers. A connection of our own, with keepalive, tells in seconds.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import psutil

KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 2, 2, 3
CONNECT_S = 2.0
AFTER_CLOSE_S = 1.0


def reachable(endpoint: str) -> bool:
    """Whether somebody listens at `host:port`."""
    try:
        socket.create_connection(_address(endpoint), timeout=CONNECT_S).close()
    except OSError:
        return False
    return True


class StoreWatch:
    """Calls `on_silence` once, from a thread, if the store falls silent, or is closed, before `close`.

    ft_launcher sees a closed store too, but takes up to a minute to end; it is given AFTER_CLOSE_S.
    """

    def __init__(self, endpoint: str, on_silence: Callable[[str], None]) -> None:
        self._address, self._on_silence = _address(endpoint), on_silence
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="store-watch", daemon=True).start()

    def close(self) -> None:
        """Stop watching."""
        self._over.set()

    def _watch(self) -> None:
        connection = self._connect()
        if connection is None:
            return
        with connection:
            error = self._listen(connection)
        where = f"the store at {self._address[0]}:{self._address[1]}"
        if error is not None and not self._over.is_set():
            self._on_silence(f"{where} is silent: {error}")
        elif not self._over.wait(AFTER_CLOSE_S):
            self._on_silence(f"{where} was closed {AFTER_CLOSE_S:g} s ago")

    def _connect(self) -> socket.socket | None:
        """As soon as the store is there; None when there is no more need."""
        while not self._over.is_set():
            try:
                return socket.create_connection(self._address, timeout=CONNECT_S)
            except OSError:
                self._over.wait(1.0)
        return None

    def _listen(self, connection: socket.socket) -> OSError | None:
        """The error that ends the connection; None for an orderly end."""
        try:
            _keep_alive(connection)
            while not self._over.is_set():
                try:
                    if not connection.recv(1):
                        return None
                except TimeoutError as error:
                    if error.errno is not None:  # the kernel's own: keepalive gave up
                        raise
        except OSError as error:
            return error
        return None


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return host, int(port)


def _keep_alive(connection: socket.socket) -> None:
    connection.settimeout(1.0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def kill_tree(pid: int) -> None:
    """SIGKILL for a process and all that descend from it: none of them hears anything milder any more."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
