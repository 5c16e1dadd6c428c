"""One pod on one node: from its folders and network to its last process and its final status."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ops.local.kubernetes import deletion
from ops.local.kubernetes.events import record
from ops.local.kubernetes.objects import (
    Object,
    condition_is,
    is_finished_pod,
    is_terminating,
    name_of,
    namespace_of,
    phase_of,
    seconds,
    uid_of,
)
from ops.local.kubernetes.store import Store, ref_of
from ops.local.node.names import Names
from ops.local.node.network import Network
from ops.local.node.pod_files import TERMINATION_LOG, PodFiles, pod_files
from ops.local.node.pod_status import ContainerRecord, write_status
from ops.local.node.runtime import ContainerPlan, Ended, Running, Runtime
from ops.local.node.substitutions import Substitutions
from ops.local.node.variables import ConfigError, container_variables, expand, memory_limit_bytes

_FIRST_RESTART_S, _LONGEST_RESTART_S, _GOOD_RUN_S = 10.0, 300.0, 600.0
_MESSAGE_BYTES = 4096


@dataclass(frozen=True)
class NodeServices:
    """What the pods of all nodes share."""

    environment: str
    store: Store
    runtime: Runtime
    network: Network
    substitutions: Substitutions
    time_scale: float
    node_address: str
    names: Names


class PodWorker:
    """Advances one pod, step by step; knows nothing that is not on disk or in the store."""

    def __init__(self, services: NodeServices, pod: Object) -> None:
        self._s = services
        self.uid = uid_of(pod)
        self.node = str(pod["spec"]["nodeName"])
        self.namespace = namespace_of(pod)
        self._hostname = pod["spec"].get("hostname") or name_of(pod)
        self.files: PodFiles = pod_files(services.environment, services.runtime.pods, pod)
        known = pod.get("status", {}).get("podIP")
        self.address = known or self.files.address(lambda: services.names.address_for(pod))
        if not is_finished_pod(pod):
            services.names.addresses[self.uid] = self.address
        self.records = _records(pod)
        self._volumes: dict[str, Path] | None = None
        self._terminated_at_s: float | None = None
        self._reported: object = None
        self.released = False
        """Network, groups and folders are given back."""
        self._resume(pod)

    def _resume(self, pod: Object) -> None:
        """Takes up what an earlier server has started."""
        for rec in self.records:
            runs = self._s.runtime.pods / self.uid / rec.name
            attempts = sorted(int(p.parent.name) for p in runs.glob("*/spec.json"))
            if attempts:
                rec.attempt, rec.begun = attempts[-1], True
        if not is_finished_pod(pod) and any(r.begun for r in self.records):
            self._volumes = self.files.make(self._s.store, pod, self._s.substitutions)

    def step(self, pod: Object) -> None:
        """One look at the pod."""
        if self.released:
            self._finish_deletion(pod)
            return
        if is_finished_pod(pod):
            self._release()
            return
        self._look()
        if is_terminating(pod):
            self._terminate(pod)
        else:
            self._run(pod)
        self._report(pod)

    def _look(self) -> None:
        for rec in self.records:
            if rec.begun and not isinstance(rec.now, Ended):
                rec.now = self._s.runtime.state(self.uid, rec.name, rec.attempt)
                if isinstance(rec.now, Ended):
                    rec.termination_message = self._termination_message(rec)

    def _run(self, pod: Object) -> None:
        """Starts what may start now, in the order of a pod's life."""
        if self._phase(pod) in ("Succeeded", "Failed"):
            self._stop_sidecars(pod)
            return
        try:
            for rec in self._startable(pod):
                self._start(pod, rec)
        except ConfigError as error:
            self._hold(pod, str(error))

    def _startable(self, pod: Object) -> list[ContainerRecord]:
        for rec in self.records:
            if rec.init and not self._init_done(rec):
                return [rec] if self._wants_start(pod, rec) else []
        return [r for r in self.records if self._wants_start(pod, r)]

    @staticmethod
    def _init_done(rec: ContainerRecord) -> bool:
        if rec.sidecar:
            return rec.begun and rec.now is not None
        return rec.ended is not None and rec.ended.exit_code == 0

    def _wants_start(self, pod: Object, rec: ContainerRecord) -> bool:
        if not rec.begun:
            return True
        if rec.ended is None or not _restarts(pod, rec):
            return False
        if rec.retry_at_s == 0.0:
            rec.retry_at_s = rec.ended.finished_at_s + self._restart_delay_s(rec, rec.ended)
        return time.time() >= rec.retry_at_s

    def _restart_delay_s(self, rec: ContainerRecord, ended: Ended) -> float:
        """CrashLoopBackOff: at once, then 10 s · 2^n up to 5 minutes, from the start after 10 good minutes."""
        scale = self._s.time_scale
        if ended.finished_at_s - ended.started_at_s >= _GOOD_RUN_S * scale:
            rec.crashes = 0
        rec.crashes += 1
        return min(_FIRST_RESTART_S * 2 ** (rec.crashes - 2), _LONGEST_RESTART_S) * scale if rec.crashes > 1 else 0

    def _start(self, pod: Object, rec: ContainerRecord) -> None:
        if self._volumes is None:
            self._volumes = self.files.make(self._s.store, pod, self._s.substitutions)
            self._s.network.attach(self.uid, self.address)
            self.write_hosts(self._s.names.in_namespace(self.namespace))
        if rec.ended is not None:
            rec.before, rec.attempt = rec.ended, rec.attempt + 1
        self._s.runtime.start(self._plan(pod, rec))
        rec.begun, rec.now, rec.retry_at_s = True, None, 0.0
        record(self._s.store, pod, "Normal", "Started", f"Started container {rec.name}")

    def _plan(self, pod: Object, rec: ContainerRecord) -> ContainerPlan:
        container, sub = rec.spec, self._s.substitutions
        mounts = self.files.mounts(container, self._volumes or {})
        with_address = pod | {"status": pod["status"] | self._addresses()}
        variables = container_variables(self._s.store, with_address, container, mounts, self._s.names.rewrite)
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        if not container.get("command"):
            raise ConfigError("the image's entrypoint is not known on this machine: give the container a command")
        return ContainerPlan(
            pod_uid=self.uid,
            name=rec.name,
            attempt=rec.attempt,
            argv=sub.command([self._s.names.rewrite(expand(w, variables)) for w in words]),
            env=self._base_variables() | variables,
            cwd=str(sub.project_root),
            hostname=self._hostname,
            etc=self.files.etc,
            netns=self._s.network.namespace(self.uid),
            memory_bytes=memory_limit_bytes(container),
        )

    def write_hosts(self, names: dict[str, str]) -> None:
        """The pod's /etc/hosts: itself first, then every name that resolves in its namespace."""
        lines = ["127.0.0.1 localhost", f"{self.address} {self._hostname}"]
        lines += [f"{address} {name}" for name, address in sorted(names.items())]
        self.files.write_hosts("\n".join(lines) + "\n")

    def _addresses(self) -> Object:
        return {"podIP": self.address, "podIPs": [{"ip": self.address}], "hostIP": self._s.node_address}

    def _base_variables(self) -> dict[str, str]:
        """What an image brings along; nothing of the caller's own environment gets into a pod."""
        binaries = self._s.substitutions.python.parent
        return {
            "PATH": f"{binaries}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.files.temporary),
            "TMPDIR": str(self.files.temporary),
            "HOSTNAME": self._hostname,
            "LANG": os.environ.get("LANG", "C.UTF-8"),
        }

    def _hold(self, pod: Object, why: str) -> None:
        for rec in self.records:
            if not rec.begun and rec.waiting_message != why:
                rec.waiting_reason, rec.waiting_message = "CreateContainerConfigError", why
                record(self._s.store, pod, "Warning", "Failed", f"Error: {why}")

    def _terminate(self, pod: Object) -> None:
        """SIGTERM at once, SIGKILL when the grace is over: deletionTimestamp is that moment."""
        if self._terminated_at_s is None:
            self._terminated_at_s = time.time()
            record(self._s.store, pod, "Normal", "Killing", "Stopping containers")
        for rec in self.records:
            self._ask_to_end(rec)
        if time.time() >= seconds(pod["metadata"]["deletionTimestamp"]):
            self._s.runtime.kill(self.uid)

    def _ask_to_end(self, rec: ContainerRecord) -> None:
        """SIGTERM once, as soon as there is somebody to get it: a container may still be on its way."""
        if rec.begun and rec.ended is None and not rec.asked:
            rec.asked = self._s.runtime.terminate(self.uid, rec.name, rec.attempt)

    def _stop_sidecars(self, pod: Object) -> None:
        grace_s = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        for rec in self.records:
            self._ask_to_end(rec)
        if self._terminated_at_s is None:
            self._terminated_at_s = time.time()
        elif time.time() > self._terminated_at_s + grace_s:
            self._s.runtime.kill(self.uid)

    def _phase(self, pod: Object) -> str:
        """The phase that the containers' states make, sidecars left out."""
        for rec in self.records:
            if rec.init and not rec.sidecar and rec.ended and rec.ended.exit_code and not _restarts(pod, rec):
                return "Failed"
        main = [r for r in self.records if not r.init]
        if is_terminating(pod) and not any(r.begun for r in main):
            return "Failed"
        if all(r.ended is not None and (is_terminating(pod) or not _restarts(pod, r)) for r in main):
            return "Succeeded" if all(r.ended and r.ended.exit_code == 0 for r in main) else "Failed"
        if any(isinstance(r.now, Running | Ended) for r in main):
            return "Running"
        return phase_of(pod) if is_terminating(pod) else "Pending"

    def _report(self, pod: Object) -> None:
        phase = self._phase(pod)
        done = phase in ("Succeeded", "Failed")
        if done and any(r.begun and r.ended is None for r in self.records):
            phase = "Running"  # a sidecar is still ending
            done = False
        if done:
            self._release()
        report = (
            phase,
            condition_is(pod, "Ready"),
            [(r.attempt, r.now, r.waiting_message, r.retry_at_s) for r in self.records],
        )
        if report == self._reported:
            return
        self._reported = report
        self._s.store.try_modify(
            ref_of(pod), lambda p: write_status(p, self.records, phase, self.address, self._s.node_address)
        )

    def _termination_message(self, rec: ContainerRecord) -> str:
        file = self.files.root / rec.name / TERMINATION_LOG
        text = file.read_text(errors="replace")[-_MESSAGE_BYTES:] if file.exists() else ""
        failed = rec.ended is not None and rec.ended.exit_code != 0
        if not text and failed and rec.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            log = self._s.runtime.log_file(self.uid, rec.name, rec.attempt)
            text = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-80:])[-2048:]
        return text

    def _finish_deletion(self, pod: Object) -> None:
        if is_terminating(pod) and pod["metadata"].get("deletionGracePeriodSeconds"):
            deletion.delete(self._s.store, ref_of(pod), grace_s=0)

    def _release(self) -> None:
        """Gives back everything but the logs."""
        self._s.runtime.remove(self.uid)
        self._s.network.detach(self.uid)
        self._s.names.addresses.pop(self.uid, None)
        self.files.remove(logs=False)
        self.released = True

    def remove(self) -> None:
        """The Pod object is gone: so is the rest."""
        if not self.released:
            self._release()
        self.files.remove(logs=True)


def _records(pod: Object) -> list[ContainerRecord]:
    init = [ContainerRecord(c, init=True) for c in pod["spec"].get("initContainers") or []]
    return init + [ContainerRecord(c) for c in pod["spec"]["containers"]]


def _restarts(pod: Object, rec: ContainerRecord) -> bool:
    if rec.sidecar:
        return True
    policy = pod["spec"].get("restartPolicy", "Always")
    if rec.init and policy == "Always":
        policy = "OnFailure"
    failed = rec.ended is not None and rec.ended.exit_code != 0
    return bool(policy == "Always" or (policy == "OnFailure" and failed))
