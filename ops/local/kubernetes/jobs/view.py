"""One Job and its pods at one moment: everything a sync decides from, computed once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ops.local.kubernetes.defaults import UNLIMITED
from ops.local.kubernetes.jobs import indexes
from ops.local.kubernetes.jobs.backoff import counts_of, last_failed
from ops.local.kubernetes.jobs.failure_policy import verdict
from ops.local.kubernetes.objects import (
    Object,
    condition_is,
    finalizers_of,
    is_finished_pod,
    is_terminating,
    phase_of,
    uid_of,
)

TRACKING = "batch.kubernetes.io/job-tracking"


@dataclass
class JobView:
    """Read-only."""

    job: Object
    pods: list[Object] = field(default_factory=list)

    @property
    def spec(self) -> Object:
        """The Job's spec."""
        return self.job["spec"]

    @property
    def status(self) -> Object:
        """The Job's status as last written."""
        return self.job.get("status") or {}

    @property
    def indexed(self) -> bool:
        """completionMode Indexed"""
        return bool(self.spec["completionMode"] == "Indexed")

    @property
    def per_index(self) -> int | None:
        """backoffLimitPerIndex"""
        return self.spec.get("backoffLimitPerIndex")

    @property
    def replaces_failed_only(self) -> bool:
        """podReplacementPolicy Failed"""
        return bool(self.spec["podReplacementPolicy"] == "Failed")

    @property
    def backoff_limit(self) -> int:
        """backoffLimit"""
        return int(self.spec.get("backoffLimit", UNLIMITED))

    @cached_property
    def active(self) -> list[Object]:
        """Pods that are neither finished nor being deleted."""
        return [p for p in self.pods if not is_finished_pod(p) and not is_terminating(p)]

    @cached_property
    def terminating(self) -> list[Object]:
        """Pods being deleted that have not ended."""
        return [p for p in self.pods if not is_finished_pod(p) and is_terminating(p)]

    @cached_property
    def ready(self) -> list[Object]:
        """Active pods that are Ready."""
        return [p for p in self.active if condition_is(p, "Ready")]

    @cached_property
    def tracked(self) -> list[Object]:
        """Pods whose end is not counted yet."""
        return [p for p in self.pods if TRACKING in finalizers_of(p)]

    def is_failed(self, pod: Object) -> bool:
        """The pod counts as failed: while it terminates, only if a replacement need not wait for its end."""
        if phase_of(pod) == "Failed":
            return True
        return not self.replaces_failed_only and is_terminating(pod) and phase_of(pod) != "Succeeded"

    @cached_property
    def failed_tracked(self) -> list[Object]:
        """Failed pods not counted yet."""
        return [p for p in self.tracked if self.is_failed(p)]

    @cached_property
    def succeeded_tracked(self) -> list[Object]:
        """Succeeded pods not counted yet."""
        return [p for p in self.tracked if phase_of(p) == "Succeeded"]

    def counts(self, pod: Object) -> bool:
        """The failure policy does not ignore this failed pod."""
        return verdict(self.job, pod).action != "Ignore"

    @cached_property
    def failed(self) -> int:
        """Failures, those not counted yet included."""
        return int(self.status.get("failed", 0)) + sum(1 for p in self.failed_tracked if self.counts(p))

    @cached_property
    def completed_indexes(self) -> set[int]:
        """Indexes whose pod has succeeded, those not counted yet included."""
        known = indexes.parse(self.status.get("completedIndexes"))
        new = {indexes.index_of(p) for p in self.succeeded_tracked}
        return {i for i in known | new if i is not None and i < self.completions}

    @property
    def completions(self) -> int:
        """spec.completions; a Job without them is done with its first success."""
        return int(self.spec.get("completions") or 1)

    @cached_property
    def succeeded(self) -> int:
        """Successes, those not counted yet included."""
        if self.indexed:
            return len(self.completed_indexes)
        return int(self.status.get("succeeded", 0)) + len(self.succeeded_tracked)

    @cached_property
    def failed_indexes(self) -> set[int]:
        """Indexes that will not be tried again."""
        if self.per_index is None:
            return set()
        known = indexes.parse(self.status.get("failedIndexes"))
        return known | {i for p in self.failed_tracked if (i := indexes.index_of(p)) is not None and self._lost(p)}

    def _lost(self, pod: Object) -> bool:
        action = verdict(self.job, pod).action
        if action == "FailIndex":
            return True
        return action != "Ignore" and self.per_index is not None and counts_of(pod)[0] >= self.per_index

    @cached_property
    def awaiting_replacement(self) -> set[str]:
        """uids of failed pods that stay uncounted until their index runs again."""
        if self.per_index is None:
            return set()
        running = {indexes.index_of(p) for p in [*self.active, *self.terminating]}
        settled = running | self.failed_indexes | self.completed_indexes
        return {uid_of(p) for i, p in last_failed(self.failed_tracked).items() if i not in settled}
