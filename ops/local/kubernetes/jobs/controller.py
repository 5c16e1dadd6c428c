"""The loop that makes a Job's pods and its status what its spec says."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ops.local.kubernetes import deletion
from ops.local.kubernetes.events import record
from ops.local.kubernetes.feature_gates import Gates
from ops.local.kubernetes.jobs import indexes
from ops.local.kubernetes.jobs.backoff import GlobalRecord, counts_after, delay_s, finished_at_s, last_failed
from ops.local.kubernetes.jobs.outcome import SUCCESS, Outcome, deadline_s, outcome
from ops.local.kubernetes.jobs.pods import new_pod
from ops.local.kubernetes.jobs.status import Counted, write_status
from ops.local.kubernetes.jobs.view import TRACKING, JobView
from ops.local.kubernetes.kinds import JOB, POD
from ops.local.kubernetes.objects import (
    Object,
    condition_is,
    controller_of,
    drop_finalizer,
    finalizers_of,
    is_terminating,
    name_of,
    namespace_of,
    phase_of,
    uid_of,
)
from ops.local.kubernetes.store import Store, ref_of

_BATCH_S = 1.0
"""Changes of pods are looked at together after so long, as the real controller does."""


@dataclass
class _Memory:
    """What the controller remembers of a Job between syncs."""

    due_s: float = 0.0
    seen: str = ""
    """Which versions of the Job and its pods were last looked at."""
    record: GlobalRecord = field(default_factory=GlobalRecord)


class JobController:
    """Level-triggered: every sync starts from what is stored."""

    def __init__(self, store: Store, time_scale: float, gates: Gates) -> None:
        self._store = store
        self._scale = time_scale
        self._gates = gates
        self._memory: dict[str, _Memory] = {}

    def step(self) -> None:
        """Syncs every Job that is due."""
        now_s = time.time()
        owned = self._pods_by_owner()
        jobs = {uid_of(j): j for j in self._store.select(JOB)}
        self._release_orphans(jobs, owned)
        for uid in [u for u in self._memory if u not in jobs]:
            del self._memory[uid]
        for uid, job in jobs.items():
            memory = self._memory.setdefault(uid, _Memory())
            if self._is_due(memory, job, owned.get(uid, []), now_s):
                self._sync(JobView(job, owned.get(uid, [])), memory, now_s)

    def _pods_by_owner(self) -> dict[str, list[Object]]:
        owned: dict[str, list[Object]] = {}
        for pod in self._store.select(POD):
            owner = controller_of(pod)
            if owner is not None and owner["kind"] == JOB.kind:
                owned.setdefault(owner["uid"], []).append(pod)
        return owned

    def _is_due(self, memory: _Memory, job: Object, pods: list[Object], now_s: float) -> bool:
        generation = f"{job['metadata']['generation']}{is_terminating(job)}"
        seen = generation + "|" + ",".join(p["metadata"]["resourceVersion"] for p in pods)
        if seen != memory.seen:
            # A change of the Job itself is looked at at once; changes of pods wait for the batch.
            urgent = memory.seen.partition("|")[0] != generation
            due_s = now_s if urgent else now_s + _BATCH_S * self._scale
            memory.due_s = min(memory.due_s or due_s, due_s)
            memory.seen = seen
        if memory.due_s and memory.due_s <= now_s:
            memory.due_s = 0.0
            return True
        return False

    def _wake(self, memory: _Memory, at_s: float) -> None:
        memory.due_s = min(memory.due_s, at_s) if memory.due_s else at_s

    def _release_orphans(self, jobs: dict[str, Object], owned: dict[str, list[Object]]) -> None:
        for uid, pods in owned.items():
            if uid not in jobs or is_terminating(jobs[uid]):
                for pod in pods:
                    self._release(pod)
        for pod in self._store.select(POD):
            if TRACKING in finalizers_of(pod) and controller_of(pod) is None:
                self._release(pod)

    def _release(self, pod: Object) -> None:
        if TRACKING in finalizers_of(pod):
            self._store.try_modify(ref_of(pod), lambda p: drop_finalizer(p, TRACKING))

    def _sync(self, view: JobView, memory: _Memory, now_s: float) -> None:
        if condition_is(view.job, "Complete") or condition_is(view.job, "Failed"):
            for pod in view.pods:
                self._release(pod)
            return
        if is_terminating(view.job):
            return
        if view.per_index is None:  # each is tracked for one sync only: then it is counted and let go
            memory.record.note([*view.succeeded_tracked, *view.failed_tracked])
        end = outcome(view, now_s)
        if end is not None:
            self._delete(view.active, release_first=False)
        else:
            self._manage(view, memory, now_s)
        if (deadline := deadline_s(view)) is not None:
            self._wake(memory, deadline)
        self._settle(view, end)

    def _delete(self, pods: list[Object], *, release_first: bool) -> None:
        """Deletes with the pods' own grace; a pod released before is not counted, whatever its exit code."""
        for pod in pods:
            if release_first:
                self._release(pod)
            if self._store.peek(ref_of(pod)) is not None:
                deletion.delete(self._store, ref_of(pod))

    def _manage(self, view: JobView, memory: _Memory, now_s: float) -> None:
        """Makes and removes pods."""
        if view.spec.get("suspend"):
            self._delete(view.active, release_first=True)
            return
        wanted = self._wanted(view)
        surplus = self._surplus(view, wanted)
        if surplus:
            self._delete(surplus, release_first=True)
            return
        waiting = len(view.terminating) if view.replaces_failed_only else 0
        missing = wanted - len(view.active) - waiting
        if missing > 0:
            self._create(view, memory, missing, now_s)

    def _wanted(self, view: JobView) -> int:
        parallelism = int(view.spec["parallelism"])
        if view.spec.get("completions") is None:
            return len(view.active) if view.succeeded else parallelism
        return max(0, min(parallelism, view.completions - view.succeeded - len(view.failed_indexes)))

    def _surplus(self, view: JobView, wanted: int) -> list[Object]:
        """Pods with an index out of range or taken, or simply too many; the highest index goes first."""
        if not view.indexed:
            return view.active[wanted:]
        keep: dict[int, Object] = {}
        surplus = []
        for pod in view.active:
            index = indexes.index_of(pod)
            if index is None or index >= view.completions or index in keep or index in view.completed_indexes:
                surplus.append(pod)
            else:
                keep[index] = pod
        return surplus + [keep[i] for i in sorted(keep)[wanted:]]

    def _create(self, view: JobView, memory: _Memory, missing: int, now_s: float) -> None:
        if view.per_index is None and (ready_s := memory.record.ready_at_s(self._scale)) > now_s:
            self._wake(memory, ready_s)
            return
        if not view.indexed:
            for _ in range(missing):
                self._store_pod(view, None, (0, 0))
            return
        last = last_failed(view.tracked) if view.per_index is not None else {}
        for index in self._free_indexes(view)[:missing]:
            failures = counts_after(view.job, last[index]) if index in last else (0, 0)
            ready_s = finished_at_s(last[index]) + delay_s(sum(failures)) * self._scale if index in last else 0.0
            if ready_s > now_s:
                self._wake(memory, ready_s)
            else:
                self._store_pod(view, index, failures)

    def _free_indexes(self, view: JobView) -> list[int]:
        busy = {indexes.index_of(p) for p in view.active} | view.completed_indexes | view.failed_indexes
        if view.replaces_failed_only:
            busy |= {indexes.index_of(p) for p in view.terminating}
        return [i for i in range(view.completions) if i not in busy]

    def _store_pod(self, view: JobView, index: int | None, failures: tuple[int, int]) -> None:
        pod = self._store.create(new_pod(view, index, failures))
        record(self._store, view.job, "Normal", "SuccessfulCreate", f"Created pod: {name_of(pod)}")

    def _settle(self, view: JobView, end: Outcome | None) -> None:
        """Counts the pods that have ended, lets them go, and writes the status."""
        ref = ref_of(view.job)
        pods = [p for p in self._store.select(POD, namespace_of(view.job)) if self._is_owner(view.job, p)]
        after = JobView(view.job, pods)
        countable = [p for p in view.tracked if self._may_count(after, p, end)]
        counted = Counted(
            failed=sum(1 for p in countable if self._counts_as_failed(view, p, end)),
            succeeded=sum(1 for p in countable if phase_of(p) == "Succeeded"),
        )
        with self._store.atomically():  # or a kill in between would count a pod twice
            self._store.try_modify(ref, lambda job: write_status(job, after, end, counted, self._gates))
            for pod in countable:
                self._release(pod)
        job = self._store.peek(ref)
        if job is not None:
            self._announce(view.job, job)

    @staticmethod
    def _is_owner(job: Object, pod: Object) -> bool:
        owner = controller_of(pod)
        return owner is not None and owner["uid"] == uid_of(job)

    @staticmethod
    def _may_count(view: JobView, pod: Object, end: Outcome | None) -> bool:
        if end is not None or phase_of(pod) == "Succeeded":
            return True
        return view.is_failed(pod) and uid_of(pod) not in view.awaiting_replacement

    @staticmethod
    def _counts_as_failed(view: JobView, pod: Object, end: Outcome | None) -> bool:
        if phase_of(pod) == "Succeeded":
            return False
        if view.is_failed(pod):
            return view.counts(pod)
        # Once a Job is failing, its running pods count as failed; once it has succeeded, they count as nothing.
        return end is not None and end.announcement != SUCCESS

    def _announce(self, before: Object, after: Object) -> None:
        for kind, event, level in (("Complete", "Completed", "Normal"), ("Failed", "", "Warning")):
            if condition_is(after, kind):  # a finished Job is never looked at again
                found = next(c for c in after["status"]["conditions"] if c["type"] == kind)
                record(
                    self._store, after, level, event or found["reason"], found.get("message") or "Job completed"
                )
        for status, event in (("True", "Suspended"), ("False", "Resumed")):
            if condition_is(after, "Suspended", status) and not condition_is(before, "Suspended", status):
                record(self._store, after, "Normal", event, f"Job {event.lower()}")
