"""Ports for tests: two checkouts may be tested on one machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nothing listens on, on any address."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
    return port
