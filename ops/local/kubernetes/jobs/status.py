"""What the controller writes into a Job's status."""

from __future__ import annotations

from typing import NamedTuple

from ops.local.kubernetes.feature_gates import Gate, Gates
from ops.local.kubernetes.jobs import indexes
from ops.local.kubernetes.jobs.outcome import Outcome
from ops.local.kubernetes.jobs.view import JobView
from ops.local.kubernetes.objects import Object, condition_is, set_condition, timestamp


class Counted(NamedTuple):
    """Pods whose end one sync adds to the totals."""

    failed: int
    succeeded: int


def write_status(job: Object, view: JobView, end: Outcome | None, counted: Counted, gates: Gates) -> None:
    """Brings a Job's status up to date in place: its pods, those counted just now, and its end if it has come."""
    status = job.setdefault("status", {})
    _write_start(job, end, gates)
    terminating = len(view.terminating)
    _write_count(status, "failed", int(status.get("failed", 0)) + counted.failed)
    if view.indexed:
        done = view.completed_indexes
        _write_text(status, "completedIndexes", indexes.render(done))
        _write_count(status, "succeeded", len(done))
    else:
        _write_count(status, "succeeded", int(status.get("succeeded", 0)) + counted.succeeded)
    if view.per_index is not None:
        status["failedIndexes"] = indexes.render(view.failed_indexes)
    _write_count(status, "active", len(view.active))
    status["ready"] = len(view.ready)
    status["terminating"] = terminating
    status["uncountedTerminatedPods"] = {}
    if end is not None:
        _write_end(job, end, pods_left=terminating + len(view.active))


def _write_start(job: Object, end: Outcome | None, gates: Gates) -> None:
    status = job["status"]
    if job["spec"].get("suspend"):
        if end is None:
            set_condition(job, "Suspended", "True", "JobSuspended", "Job suspended")
            if Gate.MUTABLE_SCHEDULING_DIRECTIVES_FOR_SUSPENDED_JOBS in gates:
                status.pop("startTime", None)
        return
    status.setdefault("startTime", timestamp())
    if end is None and condition_is(job, "Suspended"):
        set_condition(job, "Suspended", "False", "JobResumed", "Job resumed")
        status["startTime"] = timestamp()


def _write_count(status: Object, name: str, value: int) -> None:
    if value:
        status[name] = value
    else:
        status.pop(name, None)


def _write_text(status: Object, name: str, value: str) -> None:
    if value:
        status[name] = value
    else:
        status.pop(name, None)


def _write_end(job: Object, end: Outcome, pods_left: int) -> None:
    set_condition(job, end.announcement, "True", end.reason, end.message)
    # The API takes no end of a Job without a startTime: one that fails while suspended ends when it is resumed.
    if pods_left or "startTime" not in job["status"]:
        return
    set_condition(job, end.final, "True", end.reason, end.message)
    if end.final == "Complete":
        job["status"]["completionTime"] = timestamp()
