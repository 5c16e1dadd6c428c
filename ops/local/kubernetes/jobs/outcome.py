"""Whether and how a Job ends, checked in the real controller's order: failure before success.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup
"""

from __future__ import annotations

from dataclasses import dataclass

from ops.local.kubernetes.jobs import indexes
from ops.local.kubernetes.jobs.failure_policy import verdict
from ops.local.kubernetes.jobs.view import JobView
from ops.local.kubernetes.objects import condition, phase_of, seconds

FAILURE, SUCCESS = "FailureTarget", "SuccessCriteriaMet"


@dataclass(frozen=True)
class Outcome:
    """The end of a Job: the condition that announces it, its reason and message."""

    announcement: str
    reason: str
    message: str

    @property
    def final(self) -> str:
        """The condition that follows once every pod has ended."""
        return "Failed" if self.announcement == FAILURE else "Complete"


def outcome(view: JobView, now_s: float) -> Outcome | None:
    """The Job's end if it has come, announced before or new."""
    return _announced(view) or _failed(view, now_s) or _failed_by_indexes(view) or _succeeded(view)


def _announced(view: JobView) -> Outcome | None:
    for kind in (FAILURE, SUCCESS):
        found = condition(view.job, kind)
        if found is not None and found["status"] == "True":
            return Outcome(kind, found["reason"], found.get("message", ""))
    return None


def _failed(view: JobView, now_s: float) -> Outcome | None:
    # Those counted or released before too: a pod that a suspension ends may still fail its Job.
    for pod in filter(view.is_failed, view.pods):
        ruling = verdict(view.job, pod)
        if ruling.action == "FailJob":
            return Outcome(FAILURE, "PodFailurePolicy", ruling.message)
    if view.failed > view.backoff_limit or _too_many_restarts(view):
        return Outcome(FAILURE, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    deadline = deadline_s(view)
    if deadline is not None and now_s >= deadline:
        return Outcome(FAILURE, "DeadlineExceeded", "Job was active longer than specified deadline")
    return None


def _too_many_restarts(view: JobView) -> bool:
    if view.spec["template"]["spec"]["restartPolicy"] != "OnFailure":
        return False
    running = [p for p in view.pods if phase_of(p) in ("Running", "Pending")]
    statuses = [s for p in running for s in p.get("status", {}).get("containerStatuses") or []]
    restarts = sum(int(s.get("restartCount", 0)) for s in statuses)
    return restarts > 0 if view.backoff_limit == 0 else restarts >= view.backoff_limit


def deadline_s(view: JobView) -> float | None:
    """When activeDeadlineSeconds are over; None without them, before the start and while suspended.

    A Job that kept its startTime through a suspension may be past it at the moment it is resumed.
    """
    budget, start = view.spec.get("activeDeadlineSeconds"), view.status.get("startTime")
    if budget is None or start is None or view.spec.get("suspend"):
        return None
    return seconds(start) + float(budget)


def _failed_by_indexes(view: JobView) -> Outcome | None:
    lost, most = len(view.failed_indexes), view.spec.get("maxFailedIndexes")
    if most is not None and lost > most:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return Outcome(FAILURE, "MaxFailedIndexesExceeded", message)
    # Before the success policy is looked at: a spare used up for good fails a Job that has enough successes.
    if lost and lost + view.succeeded >= view.completions:
        return Outcome(FAILURE, "FailedIndexes", "Job has failed indexes")
    return None


def _succeeded(view: JobView) -> Outcome | None:
    rules = (view.spec.get("successPolicy") or {}).get("rules") or []
    for number, rule in enumerate(rules if view.completed_indexes else []):
        wanted = indexes.parse(rule.get("succeededIndexes"))
        done = view.completed_indexes & wanted if wanted else view.completed_indexes
        if len(done) >= rule.get("succeededCount", len(wanted)):
            return Outcome(SUCCESS, "SuccessPolicy", f"Matched rules at index {number}")
    if view.spec.get("completions") is None:
        done_without_count = view.succeeded > 0 and not view.active and not view.terminating
    else:
        done_without_count = view.succeeded >= view.completions
    if done_without_count:
        return Outcome(SUCCESS, "CompletionsReached", "Reached expected number of succeeded pods")
    return None
