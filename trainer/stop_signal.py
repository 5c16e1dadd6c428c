"""SIGTERM to a container's first process. Imports next to nothing.

The kernel drops a signal that process 1 has no handler for: a pod told to go while it still imports would be
waited for until its grace period is over, and then killed.
"""

from __future__ import annotations

import signal
import subprocess
from types import FrameType
from typing import Any


class StopSignal:
    """Remembers SIGTERM from its making on, and passes it on to the child that it is given."""

    def __init__(self) -> None:
        self.came = False
        self._child: subprocess.Popen[Any] | None = None
        signal.signal(signal.SIGTERM, self._note)

    def pass_on_to(self, child: subprocess.Popen[Any]) -> None:
        """To this child from now on, and at once if it has come already."""
        self._child = child
        if self.came:
            child.terminate()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.came = True
        if self._child and self._child.poll() is None:
            self._child.send_signal(number)
