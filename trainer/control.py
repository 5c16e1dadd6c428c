"""The control pod's entry: keeps nvrx-control running until the run is complete. Imports neither torch nor NVRx.

nvrx-control exits 0 on SIGTERM and when the rendezvous is closed for good, and a pod that exits 0 would complete
the control Job while the run still needs its store. Here 0 means one thing: the completion record is there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from trainer.exit_codes import ExitCode
from trainer.paths import RunPaths

SHORT_LIFE_S = 10.0
SHORT_LIVES = 5
"""Starts that ended within SHORT_LIFE_S, one after the other, before it is left to Kubernetes and its back-off."""
PAUSE_S = 0.2


class Supervisor:
    """Starts one command again and again; remembers whether it was told to stop."""

    def __init__(self, command: list[str], completion: Path) -> None:
        self._command = command
        self._completion = completion
        self._child: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def stop(self, signum: int, _frame: FrameType | None) -> None:
        """A signal handler: pass it on, and do not start the command again."""
        self._stopping = True
        if self._child is not None:
            self._child.send_signal(signum)

    def run(self) -> ExitCode:
        """Until the run is complete, a stop, or a command that does not stay up."""
        short_lives = 0
        while not self._stopping:
            started = time.monotonic()
            code = self._run_once()
            if self._completion.exists():
                return ExitCode.TARGET_REACHED
            short_lives = short_lives + 1 if time.monotonic() - started < SHORT_LIFE_S else 0
            print(f"control: the store's process ended with {code}; the run is not complete", flush=True)
            if short_lives == SHORT_LIVES:
                return ExitCode.FAILED
            time.sleep(PAUSE_S)
        return ExitCode.TARGET_REACHED if self._completion.exists() else ExitCode.FAILED

    def _run_once(self) -> int:
        self._child = subprocess.Popen(self._command)
        if self._stopping:  # the signal came while the process was being made
            self._child.terminate()
        return self._child.wait()


def main(arguments: list[str], run_dir: Path) -> ExitCode:
    """`-- <nvrx-control command line>`."""
    supervisor = Supervisor(arguments[1:] if arguments[:1] == ["--"] else arguments, RunPaths(run_dir).completion)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, supervisor.stop)
    return supervisor.run()


if __name__ == "__main__":
    import os

    sys.exit(main(sys.argv[1:], Path(os.environ["STEADFAST_RUN_DIR"])))
