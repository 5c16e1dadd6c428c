"""The training Job and what belongs to it: headless Service, disruption budget, network policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from environments.environment import Environment
from k8s.containers import (
    TERMINATION_LOG,
    file_system_volume,
    from_field,
    mounts,
    plain,
    pod_variables,
    run_variables,
    shm_volume,
    stop_variables,
    tmp_volume,
    variable,
)
from k8s.control import control_manifests
from k8s.fault_injection import fault_variables
from k8s.launcher_command import launcher_command
from k8s.manifest import Manifest, chart_of, refuse_open_values
from k8s.names import (
    INDEX_ANNOTATION,
    JOB_NAME_LABEL,
    PRIORITY_CLASS,
    RENDEZVOUS_PORT,
    RUN_LABEL,
    SERVICE_ACCOUNT,
    SUBMISSION_LABEL,
    TRAINER_CONTAINER,
    control_name,
    pod_labels,
    service_host,
)
from k8s.network_environment import network_environment
from k8s.placement import on_gpu_nodes
from k8s.pod_security import container_security, pod_security
from k8s.resources import fitting_pod_memory, training_resources
from k8s.rules import check
from k8s.run_spec import RunSpec, check_run, run_metadata
from k8s.secrets import secrets_mounts, secrets_volumes
from trainer.exit_codes import JOB_FAILING, JOB_IGNORED

if TYPE_CHECKING:
    import cdk8s

RESTARTS_PER_INDEX = 100
"""High: an index that is lost for good fails the Job though a spare trains on; loops end by exit code 93."""


def run_charts(app: cdk8s.App, environment: Environment, run: RunSpec) -> list[cdk8s.Chart]:
    """Everything that one submission of a run adds to the cluster. Raises as `run_manifests` does."""
    return [chart_of(app, run.job_name, run_manifests(environment, run))]


def run_manifests(environment: Environment, run: RunSpec) -> list[Manifest]:
    """The same as plain dictionaries, checked. Services first: pods look them up as they start.

    Raises InvalidRunError for the run's own problems, DoesNotFitError when the model needs more host memory than
    the instance type has, InvalidManifestError for a broken rule (k8s/rules.py) or an empty value.
    """
    check_run(environment, run)
    documents = [
        headless_service(environment, run),
        network_policy(environment, run),
        *control_manifests(environment, run),
        disruption_budget(environment, run),
        training_job(environment, run),
    ]
    refuse_open_values(documents)
    check(environment, documents)
    return documents


def training_job(environment: Environment, run: RunSpec) -> Manifest:
    """A core Indexed Job: training nodes and spares alike are its indexes."""
    pods = environment.nodes + environment.spares
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": run_metadata(environment, run, run.job_name, "trainer"),
        "spec": {
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "suspend": False,
            "backoffLimitPerIndex": RESTARTS_PER_INDEX,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": pod_failure_rules()},
            # A spare that still waits, or was just made again, must not hold up a finished run.
            "successPolicy": {"rules": [{"succeededCount": environment.nodes}]},
            "template": {
                "metadata": {"labels": pod_labels(run.name, run.submission, "trainer")},
                "spec": pod_spec(environment, run),
            },
        },
    }


def pod_failure_rules() -> list[dict[str, Any]]:
    """The first that matches wins: an evicted pod that says 93 still ends the Job."""
    return [
        {"action": "FailJob", "onExitCodes": _exit_codes(JOB_FAILING)},
        {"action": "Ignore", "onExitCodes": _exit_codes(JOB_IGNORED)},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _exit_codes(codes: tuple[int, ...]) -> dict[str, Any]:
    values = sorted(int(code) for code in codes)
    return {"containerName": TRAINER_CONTAINER, "operator": "In", "values": values}


def pod_spec(environment: Environment, run: RunSpec) -> dict[str, Any]:
    """The training pod."""
    memory = fitting_pod_memory(environment)
    return {
        **on_gpu_nodes(),
        "restartPolicy": "Never",
        "subdomain": run.job_name,
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": int(environment.training.recovery.termination_grace_s),
        "securityContext": pod_security(environment.security.root),
        "containers": [
            {
                **_process(environment, run),
                "resources": training_resources(environment, memory),
                "securityContext": container_security(environment.security.root),
                "volumeMounts": [*mounts("fsx", "shm", "tmp"), *secrets_mounts(environment)],
            }
        ],
        "volumes": [
            file_system_volume(),
            shm_volume(memory.shm_bytes),
            tmp_volume(),
            *secrets_volumes(environment),
        ],
    }


def _process(environment: Environment, run: RunSpec) -> dict[str, Any]:
    return {
        "name": TRAINER_CONTAINER,
        "image": run.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "trainer.launch"],
        "args": ["--", *launcher_command(environment, run.job_name)],
        "env": container_variables(environment, run),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def container_variables(environment: Environment, run: RunSpec) -> list[dict[str, Any]]:
    """What `trainer.paths.PodContext` reads, then the network's variables, then the run's own."""
    endpoint = f"{service_host(control_name(run.job_name), environment.namespace)}:{RENDEZVOUS_PORT}"
    return [
        *pod_variables(),
        *run_variables(run.name, run.submission),
        variable("STEADFAST_STORE_ENDPOINT", endpoint),
        # NVRx orders nodes by it. Without it they are ordered by address, and one replaced pod with a new
        # address changes everybody's rank; then nobody's snapshot in memory is of any use.
        from_field("GROUP_RANK", f"metadata.annotations['{INDEX_ANNOTATION}']"),
        variable("STEADFAST_IMAGE", run.image),
        *stop_variables(environment),
        *plain({**network_environment(environment), "OMP_NUM_THREADS": "1"}),
        variable("STEADFAST_CONFIG", run.training(environment).model_dump_json()),
        *fault_variables(run),
    ]


def headless_service(environment: Environment, run: RunSpec) -> Manifest:
    """Pod host names, from before their containers are ready (jobset#504)."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": run_metadata(environment, run, run.job_name, "trainer"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_NAME_LABEL: run.job_name},
        },
    }


def disruption_budget(environment: Environment, run: RunSpec) -> Manifest:
    """No drain under a run: the planned stop comes first. An integer, for Jobs have no scale subresource."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": run_metadata(environment, run, run.job_name, "trainer"),
        "spec": {
            "minAvailable": environment.nodes + environment.spares,
            "selector": {"matchLabels": {JOB_NAME_LABEL: run.job_name}},
        },
    }


def network_policy(environment: Environment, run: RunSpec) -> Manifest:
    """A run's pods talk to each other and to DNS; the namespace's default denies the rest.

    EFA's own traffic never passes here: only the EFA security group governs it.
    """
    peers = [{"podSelector": {"matchLabels": _selector(run)}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": run_metadata(environment, run, run.job_name, "trainer"),
        "spec": {
            "podSelector": {"matchLabels": _selector(run)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers}],
            "egress": [{"to": peers}],
        },
    }


def _selector(run: RunSpec) -> dict[str, str]:
    return {RUN_LABEL: run.name, SUBMISSION_LABEL: str(run.submission)}
