"""From a plan to a finished run with its report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from k8s.names import control_name
from ops.cluster import Cluster, is_ready, submission_of
from ops.console import Output
from ops.errors import CloudError, InvalidInputError, RefusedError, RunFailedError
from ops.follow import End, Outcome, follow, outcome_of
from ops.interrupts import not_interrupted
from ops.outside_faults import Striker, from_outside, refuse_where_nobody_strikes, striking
from ops.report.reference import ReferenceTime
from ops.report.run_directory import NoSuchRunError, Run, load_run, write_report
from ops.report.summary import Summary
from ops.report.terminal import print_summary
from ops.runs import keep_report
from ops.submit import Plan, Request, plan
from ops.world import World
from trainer.events import Event
from trainer.paths import RunPaths

EXPORT_LIMIT_S = 900.0
EXPORT_POLL_S = 15.0
STOP_POLL_S = 0.3
STOP_MARGIN_S = 60.0

Notes = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Finished:
    """A run that has ended, with its figures if it got as far as having any."""

    run: str
    outcome: Outcome
    summary: Summary | None
    reports: Path | None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        summary = self.summary.model_dump(mode="json", by_alias=True) if self.summary else None
        reports = str(self.reports) if self.reports else None
        return {"run": self.run, "end": self.outcome.end, "reason": self.outcome.reason, "report": reports,
                "summary": summary}  # fmt: skip

    def raise_if_failed(self) -> None:
        """Raises RunFailedError unless the target was reached."""
        if self.outcome.end is not End.REACHED:
            raise RunFailedError(f"run {self.run} {self.outcome.end}: {self.outcome.reason}")


def submit_run(
    world: World, request: Request, t_ref: ReferenceTime | None = None, *, detach: bool = False
) -> Plan:
    """Validate, then create or go on. Raises InvalidInputError with every problem, RefusedError, ApiException."""
    planned = plan(world.call.environment, request, world.existing(request.run))
    refuse_where_nobody_strikes(planned.spec.faults, local=world.call.local, followed=not detach)
    _refuse_if_under_way(world.cluster, request.run)
    refuse_without_nodes(world, world.call.environment.nodes)
    _remove_older(world.cluster, request.run)
    world.runs.write_run_json(
        request.run, {**(world.runs.run_json(request.run) or {}), **planned.run_json(t_ref, world.facts)}
    )
    world.cluster.create_all(planned.manifests)
    return planned


def _refuse_if_under_way(cluster: Cluster, run: str) -> None:
    for job in cluster.jobs(run):
        if outcome_of(job) is None:
            raise RefusedError(
                f"run {run} is under way as Job {job.metadata.name}",
                fix=f"`steadfast stop ENV --run {run}` saves and stops it; then --resume",
            )


def refuse_without_nodes(world: World, needed: int) -> None:
    """Raises RefusedError when fewer GPU nodes are up than a Job needs."""
    environment = world.call.environment
    ready = sum(1 for node in world.cluster.gpu_nodes() if is_ready(node))
    if ready < needed:
        raise RefusedError(
            f"{ready} GPU nodes are ready and the Job needs {needed}",
            fix=f"`steadfast scale {environment.name} {environment.nodes + environment.spares}`",
        )


def _remove_older(cluster: Cluster, run: str) -> None:
    for job in cluster.jobs(run):
        cluster.delete_submission(run, submission_of(job))
        cluster.wait_gone(job.metadata.name)
    for job in cluster.jobs(run, role="control"):
        cluster.wait_gone(job.metadata.name)


def finish(world: World, planned: Plan, notes: Notes | None = None) -> Finished:
    """Follow the run to its end, write its report and keep a copy; does not judge the end."""
    spec, output = planned.spec, world.call.output
    try:
        with striking(_striker(world, planned)) as struck:
            told = partial(_told, notes, struck)
            outcome = follow(world.cluster, spec.job_name, planned.training.loop.steps, output, told)
    except KeyboardInterrupt:
        _let_go(world, planned)
        raise
    if outcome.end in (End.REACHED, End.FAILED):  # the Job stays, for `status` and `logs`
        world.cluster.delete_submission(spec.name, spec.submission, keep_job=True)
    run = _records(world, spec.name, outcome)
    if run is None:
        return Finished(spec.name, outcome, None, None)
    summary, reports = keep_summary(run, world.reports(spec.name))
    return Finished(spec.name, outcome, summary, reports)


def _let_go(world: World, planned: Plan) -> None:
    """A run outlives its follower where the cluster does; in one that commands share it ends with its own."""
    call, spec = world.call, planned.spec
    if call.local:
        from ops.local_use import goes_with_its_users

        if goes_with_its_users(call):
            with not_interrupted(), contextlib.suppress(ApiException, HTTPError):  # the cluster itself goes then
                world.cluster.delete_submission(spec.name, spec.submission)
            return
    flag = " --local" if call.local else ""
    call.output.say(f"the run goes on: `steadfast status {call.environment.name}{flag} --run {spec.name}`")


def _striker(world: World, planned: Plan) -> Striker | None:
    faults = from_outside(planned.spec.faults)
    if not faults:
        return None
    from ops.local.kubernetes.cluster import LocalCluster
    from ops.local_hand import LocalHand

    environment = planned.environment
    num_pods = environment.nodes + environment.spares
    hand = LocalHand(LocalCluster(world.call.state), world.cluster, planned.spec.job_name, num_pods)
    events = RunPaths(world.runs.fetch(planned.spec.name)).events
    return Striker(faults, events, hand, planned.training.loop.eval_every)


def _told(notes: Notes | None, struck: Notes) -> Iterator[str]:
    yield from notes() if notes else ()
    yield from struck()


def _records(world: World, name: str, outcome: Outcome) -> Run | None:
    """The run as it can be read from here; on AWS records arrive through the archive, minutes after the end."""
    deadline_s = time.monotonic() + (0.0 if world.call.local else EXPORT_LIMIT_S)
    while True:
        found: Run | None = None
        with contextlib.suppress(NoSuchRunError):
            found = load_run(world.runs.fetch(name))
        whole = found is not None and (outcome.end is not End.REACHED or found.ledger.of_event(Event.FINAL))
        if whole or time.monotonic() >= deadline_s:
            return found if found and found.ledger.records else None
        time.sleep(EXPORT_POLL_S)


def keep_summary(run: Run, folder: Path) -> tuple[Summary, Path]:
    """Write the run's report, and a copy of it into `folder`. Raises EmptyLedgerError."""
    summary = write_report(run)
    return summary, keep_report(run.paths.root, folder)


def show(output: Output, finished: Finished) -> None:
    """The tables, and where the report is."""

    def words(console: Any) -> None:
        if finished.summary:
            print_summary(console, finished.summary)
        console.print(f"{finished.run}: {finished.outcome.end}" + (
            f"; report in {finished.reports}" if finished.reports else ""
        ))  # fmt: skip

    output.result(finished.as_dict(), words)


def stop_run(cluster: Cluster, run: str, limit_s: float) -> str:
    """Suspend the run's Job and wait: all ranks save and leave. Returns the Job's name.

    Raises InvalidInputError when the run is not under way, CloudError when its pods do not end in time.
    """
    jobs = cluster.jobs(run)
    if not jobs or outcome_of(jobs[-1]) is not None:
        raise InvalidInputError(f"run {run} is not under way", fix="`steadfast list ENV` shows the runs")
    name: str = jobs[-1].metadata.name
    cluster.suspend(name, suspended=True)
    deadline_s = time.monotonic() + limit_s
    while outcome_of(cluster.job(name)) is None or any(pod.exit_code is None for pod in cluster.pods(name)):
        if time.monotonic() > deadline_s:
            raise CloudError(
                f"Job {name} is suspended, and its pods have not ended after {limit_s:.0f} s",
                fix="`steadfast status` names them; a pod on a dead node needs `steadfast node release`",
            )
        time.sleep(STOP_POLL_S)
    return name


def release_control(cluster: Cluster, job: str) -> None:
    """The control pod of a stopped run has nothing to do."""
    if cluster.job(control_name(job)) is not None:
        cluster.suspend(control_name(job), suspended=True)
