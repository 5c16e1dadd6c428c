"""The status a kubelet reports for a pod.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/
"""

from __future__ import annotations

from dataclasses import dataclass

from ops.local.kubernetes.objects import Object, set_condition, timestamp
from ops.local.node.runtime import Ended, Running


@dataclass
class ContainerRecord:
    """One container of a pod and its present run."""

    spec: Object
    init: bool = False
    attempt: int = 0
    begun: bool = False
    now: Running | Ended | None = None
    before: Ended | None = None
    waiting_reason: str = "ContainerCreating"
    waiting_message: str = ""
    retry_at_s: float = 0.0
    """When it runs again after it has ended; 0: not decided."""
    crashes: int = 0
    asked: bool = False
    """SIGTERM has reached it."""
    termination_message: str = ""

    @property
    def name(self) -> str:
        """The container's name."""
        return str(self.spec["name"])

    @property
    def sidecar(self) -> bool:
        """An init container that runs beside the others: restartPolicy Always."""
        return self.init and self.spec.get("restartPolicy") == "Always"

    @property
    def ended(self) -> Ended | None:
        """How it ended, if it will not run again."""
        return self.now if isinstance(self.now, Ended) else None

    def status(self) -> Object:
        """Its containerStatus."""
        running = isinstance(self.now, Running)
        status: Object = {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "restartCount": self.attempt,
            "ready": running or (self.init and self.ended is not None and self.ended.exit_code == 0),
            "started": running,
            "state": self._state(),
            "lastState": {},
        }
        last = self.ended if self.retry_at_s and self.ended else self.before
        if last is not None:
            status["lastState"] = {"terminated": _terminated(last, "")}
        return status

    def _state(self) -> Object:
        if isinstance(self.now, Running):
            return {"running": {"startedAt": timestamp(self.now.started_at_s)}}
        if self.retry_at_s:
            return {"waiting": {"reason": "CrashLoopBackOff"}}
        if isinstance(self.now, Ended):
            return {"terminated": _terminated(self.now, self.termination_message)}
        waiting = {"reason": self.waiting_reason}
        return {"waiting": waiting | ({"message": self.waiting_message} if self.waiting_message else {})}


def _terminated(ended: Ended, message: str) -> Object:
    state: Object = {
        "exitCode": ended.exit_code,
        "reason": ended.reason,
        "startedAt": timestamp(ended.started_at_s),
        "finishedAt": timestamp(ended.finished_at_s),
    }
    text = message or ended.message
    return state | ({"message": text} if text else {})


def write_status(pod: Object, records: list[ContainerRecord], phase: str, address: str, node_address: str) -> None:
    """Writes everything into the pod's status."""
    status = pod["status"]
    status.setdefault("startTime", timestamp())
    status.update(
        phase=phase,
        hostIP=node_address,
        podIP=address,
        podIPs=[{"ip": address}],
        qosClass="Burstable",
        containerStatuses=[r.status() for r in records if not r.init],
    )
    if any(r.init for r in records):
        status["initContainerStatuses"] = [r.status() for r in records if r.init]
    done = phase in ("Succeeded", "Failed")
    reason = "PodCompleted" if phase == "Succeeded" else "PodFailed" if done else ""
    ready = phase == "Running" and all(isinstance(r.now, Running) for r in records if not r.init)
    initialized = all(r.sidecar or (r.ended and r.ended.exit_code == 0) for r in records if r.init)
    not_ready = reason or "ContainersNotReady"
    set_condition(pod, "Initialized", "True" if initialized else "False")
    for kind in ("ContainersReady", "Ready"):
        set_condition(pod, kind, "True" if ready else "False", "" if ready else not_ready)
