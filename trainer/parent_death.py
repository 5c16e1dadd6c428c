"""A process that ends when its parent does, whatever the parent dies of. Imports next to nothing."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


def die_with_parent(parent: int | None = None) -> None:
    """SIGKILL when the thread that started this process is gone (prctl(2), PR_SET_PDEATHSIG).

    At once if the parent is not `parent` any more: it was gone before it could be asked for.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def name_process(name: str) -> None:
    """What `ps` and /proc call this process; its first 15 characters."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
