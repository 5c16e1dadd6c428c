"""Kills pods, nodes and the store of a run on the local Kubernetes."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from k8s.names import control_name
from ops.cluster import NOT_FOUND, Cluster, PodState, is_ready
from ops.local.kubernetes.cluster import LocalCluster
from ops.outside_faults import Act
from trainer.faults.schema import Fault, FaultClass

OUTAGE_S = 5.0
"""How long a lost node stays away when the fault has no `duration_s`: an instance that reboots."""


class LocalHand:
    """Reaches into one run's pods."""

    def __init__(self, local: LocalCluster, cluster: Cluster, job: str, num_pods: int) -> None:
        self._local, self._cluster, self._job, self._num_pods = local, cluster, job, num_pods
        self._core: Any = client.CoreV1Api(local.api_client())
        self._back_at_s: dict[str, float] = {}

    def blow(self, fault: Fault, pod: str | None) -> tuple[str, Act] | None:
        """As `ops.outside_faults.Hand` says."""
        if fault.class_ is FaultClass.CONTROL_LOSS:
            return self._control_loss()
        found = self._running(self._job).get(pod or "")
        if found is None:
            return None
        if fault.class_ is FaultClass.POD_KILL:
            return self._pod_kill(found)
        return found.node, partial(self._node_loss, found.node, fault.duration_s or OUTAGE_S)

    def _running(self, job: str) -> dict[str, PodState]:
        return {pod.name: pod for pod in self._cluster.pods(job) if pod.phase == "Running"}

    def _control_loss(self) -> tuple[str, Act] | None:
        for name in self._running(control_name(self._job)):
            return name, partial(self._delete, name)
        return None

    def _delete(self, pod: str) -> None:
        try:
            self._core.delete_namespaced_pod(pod, self._cluster.namespace, grace_period_seconds=0)
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise

    def _pod_kill(self, pod: PodState) -> tuple[str, Act] | None:
        """SIGKILL for all it runs, by the node: a deletion would ask the pod to save first."""
        try:
            uid = self._core.read_namespaced_pod(pod.name, self._cluster.namespace).metadata.uid
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise
            return None
        return pod.name, partial(self._local.kill_pod, uid)

    def _node_loss(self, node: str, outage_s: float) -> None:
        try:
            self._local.kill_node(node)
        finally:  # an answer that is lost may tell of a node that is, too
            self._back_at_s[node] = time.monotonic() + outage_s

    def whole(self) -> bool:
        """All pods run, spares included, and so does the store's."""
        training, control = self._running(self._job), self._running(control_name(self._job))
        nodes = self._cluster.gpu_nodes()
        return len(training) == self._num_pods and bool(control) and all(is_ready(node) for node in nodes)

    def heal(self, *, at_once: bool = False) -> None:
        """Nodes that were away for long enough come back, as after a reboot."""
        now_s = time.monotonic()
        for node in [name for name, back_s in self._back_at_s.items() if at_once or back_s <= now_s]:
            self._local.bring_back(node)
            del self._back_at_s[node]
