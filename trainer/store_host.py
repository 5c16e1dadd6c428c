"""The control pod's entry: `python -m trainer.store_host -- <nvrx-control's command line>`.

Keeps the rendezvous store away from the training nodes, so that any of them may die. nvrx-control exits 0 on
SIGTERM and when a rendezvous is closed; this exits 0 only when the run is complete, and starts it again otherwise.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.exit_codes import ExitCode
from trainer.forkserver import OF_THE_STORE, ForkServer
from trainer.paths import PodContext
from trainer.resilience import progress, verdict
from trainer.resilience.verdict import file_clock_ns
from trainer.stop_signal import StopSignal

if TYPE_CHECKING:
    from trainer.config import TrainConfig

log = logging.getLogger("steadfast.store")

CONTROL = (sys.executable, "-m", "trainer.forked", "nvidia_resiliency_ext.fault_tolerance.control_plane")
AFTER_STOP_S = 5.0
"""Between a planned stop's verdict and a fresh store: ranks have committed and are leaving."""
LAST_READERS_S = 20.0
"""How long a finished run's launchers may still ask the store for the reason of its end."""


class StoreHost:
    """One nvrx-control at a time, until the run is complete or the pod is told to go."""

    def __init__(
        self,
        context: PodContext,
        config: TrainConfig,
        arguments: list[str],
        fork_server: ForkServer | None = None,
        stop: StopSignal | None = None,
    ) -> None:
        self._context, self._config, self._arguments = context, config, arguments
        self._fork_server = fork_server
        self._stop = stop or StopSignal()
        self._begun_ns = self._clock()

    def run(self) -> ExitCode:
        """Returns when there is no more use for a store."""
        child = self._spawn()
        while not self._stop.came:
            if self._complete():
                return self._end(child, ExitCode.TARGET_REACHED, LAST_READERS_S)
            if self._stopped():
                self._renew(child)
            if child.poll() is not None:
                log.warning("nvrx-control ended with %s and the run is not complete: again", child.returncode)
                child = self._spawn()
            time.sleep(0.25)
        code = ExitCode.TARGET_REACHED if self._complete() else ExitCode.PLANNED_STOP
        return self._end(child, code, 0.0)

    def _stopped(self) -> bool:
        """Whether ranks have left a planned stop's verdict since the store began."""
        found = verdict.find([self._context.paths.verdicts], self._context.pod, newer_than_ns=self._begun_ns)
        return found is not None and found.code is ExitCode.PLANNED_STOP

    def _renew(self, child: subprocess.Popen[bytes]) -> None:
        """End the store of a planned stop: launchers would wait 300 s in it for one that was told to go, and pods
        that come to resume need a rendezvous that nobody has left half done."""
        time.sleep(AFTER_STOP_S)
        self._begun_ns = self._clock()
        child.kill()
        child.wait()

    def _clock(self) -> dict[Path, int]:
        return {self._context.paths.verdicts: file_clock_ns(self._context.paths.verdicts)}

    def _spawn(self) -> subprocess.Popen[bytes]:
        variables = self._fork_server.variables() if self._fork_server else {}
        return subprocess.Popen([*CONTROL, *self._arguments], env={**os.environ, **variables})

    def _end(self, child: subprocess.Popen[bytes], code: ExitCode, patience_s: float) -> ExitCode:
        for signal_number, wait_s in ((None, patience_s), (signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0)):
            if signal_number is not None:
                child.send_signal(signal_number)
            try:
                child.wait(wait_s)
                break
            except subprocess.TimeoutExpired:
                continue
        return code

    def _complete(self) -> bool:
        step = progress.completed_step(self._context.paths)
        return step is not None and step >= self._config.loop.steps


def _host(context: PodContext, arguments: list[str], fork_server: ForkServer, stop: StopSignal) -> ExitCode:
    from trainer.config import TrainConfig  # pydantic: a quarter of a second, which the other process uses

    config = TrainConfig.model_validate_json(context.config_json)
    if not config.recovery.fork_server:
        fork_server.close()
    return StoreHost(context, config, arguments, fork_server, stop).run()


def main(argv: list[str]) -> int:
    """Exit code of the control pod."""
    stop = StopSignal()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    context = PodContext.from_environment()
    arguments = argv[1:] if argv[:1] == ["--"] else argv
    fork_server = ForkServer(OF_THE_STORE)
    try:
        return int(_host(context, arguments, fork_server, stop))
    finally:
        fork_server.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
