"""The control pod: the rendezvous store, outside the GPUs, so that any training node may die."""

from __future__ import annotations

from typing import Any

from environments.environment import Environment
from k8s.containers import (
    TERMINATION_LOG,
    file_system_volume,
    mounts,
    pod_variables,
    run_variables,
    tmp_volume,
    variable,
)
from k8s.launcher_command import control_command
from k8s.manifest import Manifest
from k8s.names import (
    CONTROL_CONTAINER,
    JOB_NAME_LABEL,
    PRIORITY_CLASS,
    RENDEZVOUS_PORT,
    SERVICE_ACCOUNT,
    control_name,
    pod_labels,
)
from k8s.placement import on_system_nodes
from k8s.pod_security import container_security, pod_security
from k8s.run_spec import RunSpec, run_metadata

RESTARTS = 1000
"""Restarts of the container and pods together; a run is not ended by how often its store moved."""
GRACE_S = 10
RESOURCES = {"cpu": "1", "memory": "2Gi"}


def control_manifests(environment: Environment, run: RunSpec) -> list[Manifest]:
    """A Service and the one-pod Job behind it."""
    return [control_service(environment, run), control_job(environment, run)]


def control_service(environment: Environment, run: RunSpec) -> Manifest:
    """One address for the store, whichever pod holds it, from before that pod is ready."""
    name = control_name(run.job_name)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": run_metadata(environment, run, name, "control"),
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": True,
            "selector": {JOB_NAME_LABEL: name},
            "ports": [
                {"name": "store", "port": RENDEZVOUS_PORT, "targetPort": RENDEZVOUS_PORT, "protocol": "TCP"}
            ],
        },
    }


def control_job(environment: Environment, run: RunSpec) -> Manifest:
    """nvrx-control, made again until the run is complete.

    OnFailure: the kubelet starts a container again at once, a Job makes a new pod only after 10 s.
    """
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": run_metadata(environment, run, control_name(run.job_name), "control"),
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "suspend": False,
            "backoffLimit": RESTARTS,
            # Do not wait for a pod that is leaving, or for ever on a dead node.
            "podReplacementPolicy": "TerminatingOrFailed",
            "template": {
                "metadata": {"labels": pod_labels(run.name, run.submission, "control")},
                "spec": _pod_spec(environment, run),
            },
        },
    }


def _pod_spec(environment: Environment, run: RunSpec) -> dict[str, Any]:
    return {
        **on_system_nodes(environment.availability_zone),
        "restartPolicy": "OnFailure",
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(environment.security.root),
        "containers": [
            {
                **_process(environment, run),
                "resources": {"requests": RESOURCES, "limits": RESOURCES},
                "securityContext": container_security(environment.security.root),
                "volumeMounts": mounts("fsx", "tmp"),
            }
        ],
        "volumes": [file_system_volume(), tmp_volume()],
    }


def _process(environment: Environment, run: RunSpec) -> dict[str, Any]:
    return {
        "name": CONTROL_CONTAINER,
        "image": run.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "trainer.store_host"],
        "args": ["--", *control_command(environment, run.job_name)],
        "env": [
            *pod_variables(),
            *run_variables(run.name, run.submission),
            variable("STEADFAST_STORE_PORT", str(RENDEZVOUS_PORT)),
            variable("STEADFAST_CONFIG", run.training(environment).model_dump_json()),
        ],
        "ports": [{"name": "store", "containerPort": RENDEZVOUS_PORT, "protocol": "TCP"}],
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
