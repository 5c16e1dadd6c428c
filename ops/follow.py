"""A submitted Job, watched to its end. What decides is the Job's conditions; its log gives the progress."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http.client import HTTPException
from typing import Any

from kubernetes.client.exceptions import ApiException
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from urllib3.exceptions import HTTPError

from ops.bad_nodes import BadNodes
from ops.cluster import Cluster, PodState
from ops.console import Output

STEP_LINE = re.compile(r"\bstep (\d+) loss (\S+)")
POLL_S = 0.5
PATIENCE_S = 120.0
"""How long the cluster may be out of reach."""
TAIL_LINES = 60


class End(StrEnum):
    """How a Job ended. Complete and Failed may wait for ever for a dead node: their forerunners decide."""

    REACHED = "reached"
    FAILED = "failed"
    STOPPED = "stopped"
    GONE = "gone"


@dataclass(frozen=True)
class Outcome:
    """The end and the reason for it."""

    end: End
    reason: str


_DECIDING = {
    "SuccessCriteriaMet": End.REACHED,
    "Complete": End.REACHED,
    "FailureTarget": End.FAILED,
    "Failed": End.FAILED,
}


def outcome_of(job: Any | None) -> Outcome | None:
    """None while it is under way."""
    if job is None:
        return Outcome(End.GONE, "the Job was deleted")
    conditions = [condition for condition in job.status.conditions or [] if condition.status == "True"]
    for condition in conditions:
        if condition.type in _DECIDING:
            return Outcome(_DECIDING[condition.type], condition.message or condition.reason or "")
    if job.spec.suspend and not (job.status.active or getattr(job.status, "terminating", None)):
        return Outcome(End.STOPPED, "stopped; `steadfast submit --resume` goes on")
    return None


def follow(
    cluster: Cluster, job: str, target: int, output: Output, notes: Callable[[], Iterator[str]] | None = None
) -> Outcome:
    """Until the Job ends. `notes` gives lines that are worth saying as they come."""
    waiting, bad_nodes, answered_s = _Waiting(), BadNodes(cluster), time.monotonic()
    with _progress(output, job, target) as (say, advance):
        while True:
            outcome = None
            try:
                outcome = outcome_of(cluster.job(job))
                pods = cluster.pods(job)
                for line in [*waiting.news(pods), *bad_nodes.news(pods), *(notes() if notes else ())]:
                    say(line)
                advance(*newest_step(cluster, job))
                answered_s = time.monotonic()
            except (HTTPError, ApiException) as error:
                if not is_passing(error) or time.monotonic() - answered_s > PATIENCE_S:
                    raise
            if outcome is not None:
                return _with_pod_messages(cluster, job, outcome)
            time.sleep(POLL_S)


def is_passing(error: Exception) -> bool:
    """A network or a server that may be back in a moment: no reason to lose sight of a run of days."""
    if isinstance(error, ApiException):
        return error.status is None or int(error.status) in (0, 429) or error.status >= 500
    return isinstance(error, HTTPError | HTTPException | ConnectionError | TimeoutError)


class _Waiting:
    """Why pods do not run, each reason once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def news(self, pods: list[PodState]) -> Iterator[str]:
        for pod in pods:
            if pod.phase == "Pending" and pod.reason and pod.reason not in self._said:
                self._said.add(pod.reason)
                yield f"  {pod.name} waits: {pod.reason}"


def newest_step(cluster: Cluster, job: str) -> tuple[int, str]:
    """`(step, loss)` of the newest line that any pod has logged; (0, "") before."""
    found = [(0, "")]
    for pod in cluster.pods(job):
        if pod.phase in ("Running", "Terminating", "Succeeded"):
            tail = cluster.log(pod.name, lines=TAIL_LINES)
            found += [(int(step), loss) for step, loss in STEP_LINE.findall(tail)[-1:]]
    return max(found)


def _with_pod_messages(cluster: Cluster, job: str, outcome: Outcome) -> Outcome:
    """A Job's own message names the rule that matched; the pods say why."""
    if outcome.end is not End.FAILED:
        return outcome
    messages = [f"{pod.name}: {pod.reason}" for pod in cluster.pods(job) if pod.exit_code and pod.reason]
    return Outcome(outcome.end, "; ".join([outcome.reason, *messages[-2:]]))


@contextmanager
def _progress(
    output: Output, job: str, target: int
) -> Iterator[tuple[Callable[[str], None], Callable[..., None]]]:
    """`(say, advance)`: a bar on a terminal, a line every tenth of the way elsewhere."""
    console = output.console
    if not console.is_terminal:
        yield output.say, _Lines(output, job, target)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[words]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(job, total=target, words="starting")

        def advance(step: int, loss: str) -> None:
            if step:
                bar.update(task, completed=step, words=f"step {step} of {target}, loss {loss}")

        yield output.say, advance


class _Lines:
    def __init__(self, output: Output, job: str, target: int) -> None:
        self._output, self._job, self._target = output, job, target
        self._said = 0

    def __call__(self, step: int, loss: str) -> None:
        if step - self._said >= max(1, self._target // 10) or (step == self._target and step > self._said):
            self._said = step
            self._output.say(f"{self._job}: step {step} of {self._target}, loss {loss}")
