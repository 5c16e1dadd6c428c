"""Lets time pass for every service, ten times a second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ops.local.aws.gate import GATE

LOG = logging.getLogger(__name__)
TICK_S = 0.1
_due: list[tuple[Callable[[], bool], Callable[[], None]]] = []


def every_tick(is_due: Callable[[], bool], work: Callable[[], None]) -> None:
    """Calls `work`, which changes state, whenever `is_due`."""
    _due.append((is_due, work))


def start() -> None:
    """Starts the clock."""
    threading.Thread(target=_run, name="clock", daemon=True).start()


def _run() -> None:
    pause = threading.Event()
    while not pause.wait(TICK_S):
        for is_due, work in _due:
            _try(is_due, work)


def _try(is_due: Callable[[], bool], work: Callable[[], None]) -> None:
    try:
        if is_due():
            with GATE.changing():
                work()
    except Exception:  # one thing's trouble must not stop time for the others
        LOG.exception("the clock's work failed")
