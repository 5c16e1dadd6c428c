"""When a failed pod's replacement may be made: 10 s · 2^(failures - 1), at most 10 minutes.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ops.local.kubernetes.jobs.failure_policy import verdict
from ops.local.kubernetes.jobs.indexes import index_of
from ops.local.kubernetes.objects import Object, annotations_of, condition, is_terminating, phase_of, seconds

FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
FIRST_S = 10.0
LONGEST_S = 600.0


def delay_s(failures: int) -> float:
    """Unscaled delay after so many failures."""
    return min(FIRST_S * 2 ** (failures - 1), LONGEST_S) if failures > 0 else 0.0


def finished_at_s(pod: Object) -> float:
    """When the pod ended: its last container if all have, else when it stopped being Ready, else its deletion."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    ends = [(s.get("state", {}).get("terminated") or {}).get("finishedAt") for s in statuses]
    if ends and all(ends):
        return max(seconds(str(e)) for e in ends)
    ready = condition(pod, "Ready")
    if ready is not None and ready["status"] == "False" and ready.get("lastTransitionTime"):
        return seconds(ready["lastTransitionTime"])
    meta = pod["metadata"]
    if is_terminating(pod):
        return seconds(meta["deletionTimestamp"]) - float(meta.get("deletionGracePeriodSeconds", 0))
    return seconds(meta["creationTimestamp"])


def counts_of(pod: Object) -> tuple[int, int]:
    """Failures and ignored failures of the pod's index before this pod."""
    notes = annotations_of(pod)
    return int(notes.get(FAILURES, "0")), int(notes.get(IGNORED, "0"))


def counts_after(job: Object, failed_pod: Object) -> tuple[int, int]:
    """The same two counts for the pod that replaces it."""
    failures, ignored = counts_of(failed_pod)
    if verdict(job, failed_pod).action == "Ignore":
        return failures, ignored + 1
    return failures + 1, ignored


def last_failed(pods: Iterable[Object]) -> dict[int, Object]:
    """Per index, the failed pod that its replacement must follow: the one with the highest counts."""
    found: dict[int, Object] = {}
    for pod in pods:
        index = index_of(pod)
        if index is None or phase_of(pod) != "Failed":
            continue
        if index not in found or _order(pod) > _order(found[index]):
            found[index] = pod
    return found


def _order(pod: Object) -> tuple[int, float]:
    return sum(counts_of(pod)), finished_at_s(pod)


@dataclass
class GlobalRecord:
    """Failures of a whole Job since its last success; in memory, as in the real controller."""

    failures: int = 0
    last_failure_s: float = 0.0

    def note(self, newly_finished: Iterable[Object]) -> None:
        """Counts pods that have just been seen to end, in the order of their ends."""
        for pod in sorted(newly_finished, key=finished_at_s):
            if phase_of(pod) == "Succeeded":
                self.failures = 0
            else:
                self.failures += 1
                self.last_failure_s = max(self.last_failure_s, finished_at_s(pod))

    def ready_at_s(self, scale: float) -> float:
        """No pod is made before."""
        return self.last_failure_s + delay_s(self.failures) * scale
