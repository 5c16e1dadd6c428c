"""The pod's entry: `python -m trainer.launch -- <ft_launcher's command line>`.

Starts ft_launcher as its child, forwards SIGTERM, keeps the pod when the rendezvous is lost, and alone decides
the exit code: 0 only if the run's completion record says that the target is reached, for a pod that exits 0
completes its index for ever (kubernetes#118310).
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trainer.events import Event, Ledger
from trainer.exit_codes import ExitCode
from trainer.forkserver import OF_A_POD, ForkServer
from trainer.launcher_log import LastWords, event_in
from trainer.paths import PodContext
from trainer.resilience import health, progress, store_watch, verdict
from trainer.resilience.cause import last_error
from trainer.resilience.store_watch import StoreWatch, kill_tree
from trainer.stop_signal import StopSignal

if TYPE_CHECKING:
    from trainer.config import TrainConfig

log = logging.getLogger("steadfast.launch")

LAUNCHER = (sys.executable, "-m", "trainer.forked", "trainer.ft_launcher")
STORE_WAIT_S = 120.0
"""Longer than a control pod takes to come back after its Job's first back-offs: 10, 20 and 40 s."""
STORE_PROBE_S = 0.2
HELD_PROBE_S = 1.0
"""Between two looks of a pod that starts no ranks any more."""
LAST_LINES_S = 2.0
"""For what a launcher that has ended still has in its pipe; a process of a rank may hold that open longer."""
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
        self._ledger = _ledger(context)
        self._endpoint = _option(arguments, "--rdzv-endpoint")
        self._verdicts = (context.paths.verdicts, context.shm / "verdicts")

    def run(self) -> Conclusion:
        """Until there is something to conclude. Bounded by `recovery.gang_restarts` and what each wait allows."""
        restarts = self._config.recovery.gang_restarts
        conclusion = self._start(0)
        for number in range(1, restarts + 1):
            if not conclusion.again or self._stop.came:
                return conclusion
            self._record(Event.GANG_RESTART, number=number, reason=conclusion.reason)
            log.warning("%s; starting ft_launcher again in this pod (%d)", conclusion.reason, number)
            conclusion = self._start(number)
        if not conclusion.again:
            return conclusion
        return Conclusion(ExitCode.FAILED, f"{restarts} gang restarts used up; the last: {conclusion.reason}")

    def _start(self, number: int) -> Conclusion:
        return self._after_stop_at() or self._await_store() or self._supervise(number)

    def _after_stop_at(self) -> Conclusion | None:
        """None while there is time to train. Afterwards wait quietly to be told to go.

        The Job replaces each pod that ends with 92 as long as the Capacity Block has nodes, and each would train
        some steps and stop again.
        """
        stop_at = os.environ.get("STEADFAST_STOP_AT")
        if not stop_at or time.time() < float(stop_at):
            return None
        reason = "the Capacity Block is about to end: no ranks are started in this pod any more"
        log.warning("%s; a submission with a later end resumes the run", reason)
        self._record(Event.HELD, reason=reason)
        while not self._stop.came:
            if (step := self._reached()) is not None:
                return Conclusion(ExitCode.TARGET_REACHED, f"target step {step} reached")
            time.sleep(HELD_PROBE_S)
        return self._told_to_stop("after the Capacity Block's planned stop")

    def _record(self, event: Event, **fields: Any) -> None:
        """Into the ledger if that takes it: what a pod concludes must not depend on it."""
        try:
            if self._ledger:
                self._ledger.write(event, **fields)
        except OSError as error:
            log.warning("not in the ledger: %s %s: %s", event, fields, error)

    def _await_store(self) -> Conclusion | None:
        """Look for the store often, so that ft_launcher need not: it would look every 2 to 3 s.

        None once it is there, or what there is to conclude before.
        """
        end_s = time.monotonic() + STORE_WAIT_S
        while not store_watch.reachable(self._endpoint):
            if (step := self._reached()) is not None:
                return Conclusion(ExitCode.TARGET_REACHED, f"target step {step} reached")
            if self._stop.came:
                return self._told_to_stop("while the store was not there")
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

    def _told_to_stop(self, when: str) -> Conclusion:
        """A stop that no rank took part in, and from where the run goes on."""
        step = progress.saved_step(self._context.paths)  # memory alone may have had it, and that goes with the pod
        after = f"step {step} at the latest" if step else "the beginning: nothing was saved yet"
        return Conclusion(ExitCode.PLANNED_STOP, f"told to stop {when}; a resumed run starts from {after}")

    def _supervise(self, number: int) -> Conclusion:
        """One life of ft_launcher."""
        if self._stop.came:
            return self._told_to_stop("before ft_launcher was started")
        self._record(Event.LAUNCH_STARTED, start=number)
        begun_ns = {directory: _clock_ns(directory) for directory in self._verdicts}
        said = LastWords()
        child = self._spawn()
        assert child.stdout is not None
        relay = threading.Thread(target=self._relay, args=(child.stdout, said), daemon=True)
        relay.start()
        self._stop.pass_on_to(child)
        watch = StoreWatch(self._endpoint, partial(self._store_is_silent, child))
        returncode = child.wait()
        watch.close()
        relay.join(LAST_LINES_S)
        found = verdict.find(self._verdicts, self._context.pod, newer_than_ns=begun_ns)
        conclusion = self._conclude(returncode, found, said)
        self._record(
            Event.LAUNCH_ENDED,
            returncode=returncode,
            exit_code=int(conclusion.code),
            reason=conclusion.reason,
            verdict=found.reason if found else None,
        )
        return conclusion

    def _spawn(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "STEADFAST_STORE_ENDPOINT": self._endpoint}
        if self._fork_server:
            environment |= self._fork_server.variables()
        return subprocess.Popen(
            [*LAUNCHER, *self._arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _store_is_silent(self, child: subprocess.Popen[str], detail: str) -> None:
        """Ranks and launcher hang on it and hear no SIGTERM; the next start of ft_launcher finds the new store."""
        self._record(Event.FAILURE_DETECTED, layer="launcher", detail=detail)
        log.warning("%s; ending ft_launcher and its ranks", detail)
        kill_tree(child.pid)

    def _conclude(self, returncode: int, found: verdict.Verdict | None, said: LastWords) -> Conclusion:
        if (step := self._reached()) is not None:
            return Conclusion(ExitCode.TARGET_REACHED, f"target step {step} reached")
        if found:
            where = f"rank {found.rank}, step {found.step}, attempt {found.attempt}"
            return Conclusion(found.code, f"{found.reason} ({where})")
        if returncode == NO_RESTART or said.no_restart:
            error = last_error(self._context.paths, self._context.submission)
            return Conclusion(ExitCode.NO_PROGRESS, f"ft_launcher saw no progress; last error: {error}")
        if said.unhealthy is not None:
            return Conclusion(ExitCode.BAD_NODE, f"ft_launcher's check of this node: {said.unhealthy}")
        if self._stop.came:
            return self._told_to_stop(f"outside the steps (ft_launcher ended with {returncode})")
        return Conclusion(ExitCode.FAILED, f"ft_launcher ended with {returncode}", again=returncode != 0)

    def _relay(self, output: IO[str], said: LastWords) -> None:
        """Pass the launcher's output on, and its timeline into the ledger: between a rank's death and its next
        start only the launcher can write.

        To its end, whatever cannot be written: a launcher that finds its pipe full stands still."""
        for line in output:
            said.hear(line)
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.write(line)
                sys.stdout.flush()
            with contextlib.suppress(ValueError):  # a time that is none
                if event := event_in(line):
                    name, fields = event
                    self._record(name, **fields)


def _ledger(context: PodContext) -> Ledger | None:
    try:
        return Ledger(
            context.paths.events, "launch", pod=context.pod, node=context.node, submission=context.submission
        )
    except OSError as error:
        log.warning("no ledger: %s", error)
        return None


def _clock_ns(directory: Path) -> int:
    """Of the file system, or of this host where that takes no file."""
    try:
        return verdict.file_clock_ns(directory)
    except OSError as error:
        log.warning("no clock in %s: %s", directory, error)
        return time.time_ns()


def _option(arguments: list[str], name: str) -> str:
    """The value of `--name value` or `--name=value`. Raises SystemExit naming what is missing."""
    for position, argument in enumerate(arguments):
        if argument == name:
            return arguments[position + 1]
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    sys.exit(f"trainer.launch: ft_launcher's command line has no {name}: {' '.join(arguments)}")


def _launch(context: PodContext, arguments: list[str], fork_server: ForkServer, stop: StopSignal) -> Conclusion:
    if problems := health.problems(context):
        return Conclusion(ExitCode.BAD_NODE, "; ".join(problems))
    from trainer.config import TrainConfig  # pydantic: a quarter of a second

    config = TrainConfig.model_validate_json(context.config_json)
    if not config.recovery.fork_server:
        fork_server.close()
    return Launch(context, config, arguments, fork_server, stop).run()


def main(argv: list[str]) -> int:
    """Run to a conclusion; its reason goes to the log and to the pod's termination message."""
    stop = StopSignal()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    context = PodContext.from_environment()
    arguments = argv[1:] if argv[:1] == ["--"] else argv
    fork_server = ForkServer(OF_A_POD)  # before all else: whatever this process does, that one imports beside it
    try:
        conclusion = _launch(context, arguments, fork_server, stop)
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
