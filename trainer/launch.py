"""The pod's entry: `python -m trainer.launch -- <ft_launcher's command line>`.

Starts ft_launcher as its child, forwards SIGTERM, keeps the pod when the rendezvous is lost, and alone decides
the exit code: 0 only if the run's completion record says that the target is reached, for a pod that exits 0
completes its index for ever (kubernetes#118310).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING

from trainer.events import Event, Ledger
from trainer.exit_codes import ExitCode
from trainer.forkserver import OF_A_POD, ForkServer
from trainer.launcher_log import event_in
from trainer.paths import PodContext
from trainer.resilience import health, progress, store_watch, verdict
from trainer.resilience.store_watch import StoreWatch, kill_tree

if TYPE_CHECKING:
    from trainer.config import TrainConfig

log = logging.getLogger("steadfast.launch")

LAUNCHER = (sys.executable, "-m", "trainer.forked", "trainer.ft_launcher")
STORE_WAIT_S = 120.0
"""Longer than a control pod takes to come back after its Job's first back-offs: 10, 20 and 40 s."""
STORE_PROBE_S = 0.2
NO_RESTART = 93
"""ft_launcher's own code for its no-progress rule (`--ft-no-restart-exit-code`)."""


@dataclass(frozen=True)
class Conclusion:
    """Exit code and the reason for it; `again` asks for another start of ft_launcher in this pod."""

    code: ExitCode
    reason: str
    again: bool = False


class Launch:
    """One pod's supervision of ft_launcher, over as many starts as it takes."""

    def __init__(
        self, context: PodContext, config: TrainConfig, arguments: list[str], fork_server: ForkServer | None = None
    ) -> None:
        self._context, self._config, self._arguments = context, config, arguments
        self._fork_server = fork_server
        self._ledger = Ledger(context.paths.events, "launch", pod=context.pod, node=context.node)
        self._child: subprocess.Popen[str] | None = None
        self._terminated = False
        self._endpoint = _option(arguments, "--rdzv-endpoint")
        self._verdicts = (context.paths.verdicts, context.shm / "verdicts")
        signal.signal(signal.SIGTERM, self._forward)

    def run(self) -> Conclusion:
        """Until there is something to conclude. Bounded by `recovery.gang_restarts` and what each wait allows."""
        if problems := health.problems(self._context):
            return Conclusion(ExitCode.BAD_NODE, "; ".join(problems))
        for number in range(self._config.recovery.gang_restarts + 1):
            conclusion = self._await_store() or self._start(number)
            if not conclusion.again or self._terminated:
                return conclusion
            self._ledger.write(Event.GANG_RESTART, number=number + 1, reason=conclusion.reason)
            log.warning("%s; starting ft_launcher again in this pod (%d)", conclusion.reason, number + 1)
        return Conclusion(ExitCode.FAILED, f"{self._config.recovery.gang_restarts} gang restarts used up")

    def _await_store(self) -> Conclusion | None:
        """Look for the store often, so that ft_launcher need not: it would look every 2 to 3 s.

        None once it is there, or what there is to conclude before.
        """
        end_s = time.monotonic() + STORE_WAIT_S
        while not store_watch.reachable(self._endpoint):
            if (step := self._reached()) is not None:
                return Conclusion(ExitCode.TARGET_REACHED, f"target step {step} reached")
            if self._terminated:
                return Conclusion(ExitCode.PLANNED_STOP, "told to stop while the store was not there")
            if time.monotonic() > end_s:
                return Conclusion(
                    ExitCode.FAILED, f"no store at {self._endpoint} for {STORE_WAIT_S:g} s", again=True
                )
            time.sleep(STORE_PROBE_S)
        return None

    def _reached(self) -> int | None:
        """The run's last step, once its completion record says so."""
        step = progress.completed_step(self._context.paths)
        return step if step is not None and step >= self._config.loop.steps else None

    def _start(self, number: int) -> Conclusion:
        self._ledger.write(Event.LAUNCH_STARTED, start=number)
        begun_ns = {directory: verdict.file_clock_ns(directory) for directory in self._verdicts}
        environment = {**os.environ, "STEADFAST_STORE_ENDPOINT": self._endpoint}
        if self._fork_server:
            environment |= self._fork_server.variables()
        self._child = subprocess.Popen(
            [*LAUNCHER, *self._arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert self._child.stdout is not None
        threading.Thread(target=self._relay, args=(self._child.stdout,), daemon=True).start()
        if self._terminated:  # between the check and the start
            self._child.terminate()
        watch = StoreWatch(self._endpoint, partial(self._store_is_silent, self._child))
        returncode = self._child.wait()
        watch.close()
        found = verdict.find(self._verdicts, self._context.pod, newer_than_ns=begun_ns)
        conclusion = self._conclude(returncode, found)
        self._ledger.write(
            Event.LAUNCH_ENDED,
            returncode=returncode,
            exit_code=int(conclusion.code),
            reason=conclusion.reason,
            verdict=found.reason if found else None,
        )
        return conclusion

    def _store_is_silent(self, child: subprocess.Popen[str], detail: str) -> None:
        """Ranks and launcher hang on it and hear no SIGTERM; the next start of ft_launcher finds the new store."""
        self._ledger.write(Event.FAILURE_DETECTED, layer="launcher", detail=detail)
        log.warning("%s; ending ft_launcher and its ranks", detail)
        kill_tree(child.pid)

    def _conclude(self, returncode: int, found: verdict.Verdict | None) -> Conclusion:
        if (step := self._reached()) is not None:
            return Conclusion(ExitCode.TARGET_REACHED, f"target step {step} reached")
        if found:
            where = f"rank {found.rank}, step {found.step}, attempt {found.attempt}"
            return Conclusion(found.code, f"{found.reason} ({where})")
        if returncode == NO_RESTART:
            error = progress.last_error(self._context.paths, self._context.submission)
            return Conclusion(ExitCode.NO_PROGRESS, f"ft_launcher saw no progress; last error: {error}")
        if self._terminated and returncode == 0:
            return Conclusion(ExitCode.PLANNED_STOP, "told to stop while waiting as a spare")
        return Conclusion(ExitCode.FAILED, f"ft_launcher ended with {returncode}", again=returncode != 0)

    def _relay(self, output: IO[str]) -> None:
        """Pass the launcher's output on, and its timeline into the ledger: between a rank's death and its next
        start only the launcher can write."""
        for line in output:
            sys.stdout.write(line)
            sys.stdout.flush()
            if event := event_in(line):
                name, fields = event
                self._ledger.write(name, **fields)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self._terminated = True
        if self._child and self._child.poll() is None:
            self._child.send_signal(number)


def _option(arguments: list[str], name: str) -> str:
    """The value of `--name value` or `--name=value`. Raises SystemExit naming what is missing."""
    for position, argument in enumerate(arguments):
        if argument == name:
            return arguments[position + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    sys.exit(f"trainer.launch: ft_launcher's command line has no {name}: {' '.join(arguments)}")


def _launch(context: PodContext, arguments: list[str], fork_server: ForkServer) -> Conclusion:
    from trainer.config import TrainConfig  # pydantic: a quarter of a second

    config = TrainConfig.model_validate_json(context.config_json)
    if not config.recovery.fork_server:
        fork_server.close()
    return Launch(context, config, arguments, fork_server).run()


def main(argv: list[str]) -> int:
    """Run to a conclusion; its reason goes to the log and to the pod's termination message."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    context = PodContext.from_environment()
    context.paths.make()
    arguments = argv[1:] if argv[:1] == ["--"] else argv
    fork_server = ForkServer(OF_A_POD)  # before all else: whatever this process does, that one imports beside it
    try:
        conclusion = _launch(context, arguments, fork_server)
    finally:
        fork_server.close()
    log.info("exit %d: %s", conclusion.code, conclusion.reason)
    message = os.environ.get("STEADFAST_TERMINATION_LOG", "/dev/termination-log")
    try:
        Path(message).write_text(conclusion.reason[:4000])
    except OSError as error:
        log.warning("no termination message: %s", error)
    return int(conclusion.code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
