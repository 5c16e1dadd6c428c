"""The Kubernetes calls, by the official client alone. AWS and local differ only in the kubeconfig."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import client, config, dynamic, utils
from kubernetes.client.exceptions import ApiException

from k8s.names import POOL_GPU, POOL_LABEL, ROLE_LABEL, RUN_LABEL, SUBMISSION_LABEL
from ops.errors import CloudError

NOT_FOUND = 404
FIELD_MANAGER = "steadfast"
DELETION_LIMIT_S = 300.0


@dataclass(frozen=True)
class PodState:
    """A pod, as far as people ask."""

    name: str
    index: int | None
    node: str
    phase: str
    reason: str
    exit_code: int | None


class Cluster:
    """One cluster's API, in one namespace."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self.namespace = namespace
        self._batch: Any = client.BatchV1Api(api)
        self._core: Any = client.CoreV1Api(api)
        self._policy: Any = client.PolicyV1Api(api)
        self._networking: Any = client.NetworkingV1Api(api)
        self._api = api

    @classmethod
    def from_kubeconfig(cls, path: Path, namespace: str) -> Cluster:
        """Raises CloudError when the file is not a kubeconfig."""
        try:
            return cls(config.new_client_from_config(config_file=str(path)), namespace)
        except config.ConfigException as error:
            raise CloudError(f"{path}: {error}", fix="`steadfast connect ENV` writes it anew") from None

    def create_all(self, manifests: Iterable[dict[str, Any]]) -> None:
        """Create every object, or none: what was made before a refusal is taken back. Raises ApiException."""
        made: list[dict[str, Any]] = []
        try:
            for manifest in manifests:
                self._create(manifest)
                made.append(manifest)
        except ApiException:
            for manifest in reversed(made):
                self._delete(manifest["kind"], manifest["metadata"]["name"])
            raise

    def apply(self, manifests: Iterable[dict[str, Any]]) -> None:
        """Make objects of any kind as the manifests say, whether or not they exist. Raises ApiException."""
        with tempfile.TemporaryDirectory() as folder:
            dynamic_client = dynamic.DynamicClient(self._api, cache_file=f"{folder}/discovery.json")
            for manifest in manifests:
                metadata = manifest["metadata"]
                dynamic_client.resources.get(
                    api_version=manifest["apiVersion"], kind=manifest["kind"]
                ).server_side_apply(
                    body=manifest,
                    name=metadata["name"],
                    namespace=metadata.get("namespace"),
                    field_manager=FIELD_MANAGER,
                    force_conflicts=True,
                )

    def _create(self, manifest: dict[str, Any]) -> None:
        try:
            utils.create_from_dict(self._api, manifest, namespace=self.namespace)
        except utils.FailToCreateError as error:
            raise error.api_exceptions[0] from None

    def jobs(self, run: str | None = None, role: str = "trainer") -> list[Any]:
        """Jobs of a run, or of all runs, the newest submission last."""
        selector = f"{ROLE_LABEL}={role}," + (f"{RUN_LABEL}={run}" if run else RUN_LABEL)
        found = self._batch.list_namespaced_job(self.namespace, label_selector=selector).items
        return sorted(found, key=lambda job: (job.metadata.labels[RUN_LABEL], submission_of(job)))

    def job(self, name: str) -> Any | None:
        """None when there is none."""
        try:
            return self._batch.read_namespaced_job(name, self.namespace)
        except ApiException as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def suspend(self, name: str, suspended: bool) -> None:
        """Suspending is how a run is stopped; its pods end and are not counted."""
        self._batch.patch_namespaced_job(name, self.namespace, {"spec": {"suspend": suspended}})

    def delete_submission(self, run: str, submission: int, *, keep_job: bool = False) -> None:
        """Everything that one submission brought, pods included, the finished training Job on request excepted."""
        selector = f"{RUN_LABEL}={run},{SUBMISSION_LABEL}={submission}"
        for job in self._batch.list_namespaced_job(self.namespace, label_selector=selector).items:
            if not (keep_job and job.metadata.labels.get(ROLE_LABEL) == "trainer"):
                self._delete("Job", job.metadata.name)
        for kind, listed in (
            ("Service", self._core.list_namespaced_service),
            ("PodDisruptionBudget", self._policy.list_namespaced_pod_disruption_budget),
            ("NetworkPolicy", self._networking.list_namespaced_network_policy),
        ):
            # Only names are wanted, so what the client library's own types make of the rest does not matter.
            answer = listed(self.namespace, label_selector=selector, _preload_content=False)
            for item in json.loads(answer.data)["items"]:
                self._delete(kind, item["metadata"]["name"])

    def _delete(self, kind: str, name: str) -> None:
        """Foreground, since a Job's pods are orphaned by default (batch/v1)."""
        calls: dict[str, Callable[..., Any]] = {
            "Job": self._batch.delete_namespaced_job,
            "Service": self._core.delete_namespaced_service,
            "PodDisruptionBudget": self._policy.delete_namespaced_pod_disruption_budget,
            "NetworkPolicy": self._networking.delete_namespaced_network_policy,
        }
        try:
            calls[kind](name, self.namespace, propagation_policy="Foreground")
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise

    def wait_gone(self, job: str, limit_s: float = DELETION_LIMIT_S) -> None:
        """Until a deleted Job and its pods are gone. Raises CloudError naming the Job."""
        deadline_s = time.monotonic() + limit_s
        while self.job(job) is not None:
            if time.monotonic() > deadline_s:
                raise CloudError(
                    f"Job {job} is still being deleted after {limit_s:.0f} s",
                    fix="a pod on a dead node holds it: `steadfast node release ENV NODE`",
                )
            time.sleep(0.2)

    def pods(self, job: str) -> list[PodState]:
        """A Job's pods, by index, the oldest first."""
        selector = f"batch.kubernetes.io/job-name={job}"
        found = self._core.list_namespaced_pod(self.namespace, label_selector=selector).items
        found.sort(key=lambda pod: pod.metadata.creation_timestamp.timestamp())
        return sorted((_pod_state(pod) for pod in found), key=lambda pod: -1 if pod.index is None else pod.index)

    def log(self, pod: str, *, lines: int | None = None, container: str = "trainer") -> str:
        """What the container has written; empty before it has started."""
        try:
            tail = {"tail_lines": lines} if lines else {}
            text: str = self._core.read_namespaced_pod_log(pod, self.namespace, container=container, **tail)
        except ApiException as error:
            if error.status in (NOT_FOUND, 400):
                return ""
            raise
        return text

    def follow_log(self, pod: str, *, container: str = "trainer") -> Iterator[str]:
        """Lines as they are written, until the container ends."""
        response = self._core.read_namespaced_pod_log(
            pod, self.namespace, container=container, follow=True, _preload_content=False
        )
        rest = b""
        for chunk in response.stream(amt=None):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
        if rest:
            yield rest.decode(errors="replace")

    def gpu_nodes(self) -> list[Any]:
        """Nodes of the GPU pool."""
        nodes: list[Any] = self._core.list_node(label_selector=f"{POOL_LABEL}={POOL_GPU}").items
        return nodes

    def node(self, name: str) -> Any | None:
        """None when there is none."""
        try:
            return self._core.read_node(name)
        except ApiException as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def patch_node(self, name: str, body: dict[str, Any]) -> None:
        """Change a node. Raises ApiException."""
        self._core.patch_node(name, body)


def submission_of(job: Any) -> int:
    """Which submission of its run a Job is."""
    return int(job.metadata.labels[SUBMISSION_LABEL])


def is_ready(node: Any) -> bool:
    """Ready and open for pods."""
    conditions = node.status.conditions or []
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in conditions)
    return ready and not node.spec.unschedulable


def _unscheduled(pod: Any) -> str | None:
    """Why no node takes the pod."""
    conditions = pod.status.conditions or []
    return next((item.message for item in conditions if item.reason == "Unschedulable"), pod.status.reason)


def _pod_state(pod: Any) -> PodState:
    index = (pod.metadata.labels or {}).get("batch.kubernetes.io/job-completion-index")
    states = [status.state for status in pod.status.container_statuses or [] if status.state]
    ended = next((state.terminated for state in states if state.terminated), None)
    waiting = next((state.waiting for state in states if state.waiting), None)
    message = ended.message or ended.reason if ended else (waiting.reason if waiting else _unscheduled(pod))
    return PodState(
        name=pod.metadata.name,
        index=None if index is None else int(index),
        node=pod.spec.node_name or "",
        phase="Terminating" if pod.metadata.deletion_timestamp else pod.status.phase or "",
        reason=(message or "").strip().splitlines()[-1] if (message or "").strip() else "",
        exit_code=ended.exit_code if ended else None,
    )
