"""Ctrl-C, a polite end and a closed terminal: one way out, and the moments that it must not cut short."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed() -> None:
    """From now on each of them raises KeyboardInterrupt; one that is ignored already, as by nohup, stays so."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        _silence_the_terminal()
    raise KeyboardInterrupt


def _silence_the_terminal() -> None:
    """A terminal that is gone answers each word with an error, which would take the interruption's place."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def ended_if_interrupted(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """For a server that has not said yet who it is: nobody else could end it."""
    try:
        yield
    except KeyboardInterrupt:
        process.kill()
        process.wait()
        raise


@contextmanager
def not_interrupted() -> Iterator[None]:
    """A second Ctrl-C must not leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
