"""`check --nodes`: an all-reduce over the nodes, against the bus bandwidth that the instance table expects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from environments.environment import Environment
from k8s.containers import (
    TERMINATION_LOG,
    file_system_volume,
    mounts,
    plain,
    pod_variables,
    run_variables,
    shm_volume,
    tmp_volume,
    variable,
)
from k8s.manifest import Manifest, chart_of
from k8s.names import (
    PRIORITY_CLASS,
    RENDEZVOUS_PORT,
    SERVICE_ACCOUNT,
    TRAINER_CONTAINER,
    service_host,
)
from k8s.network_environment import network_environment
from k8s.placement import on_gpu_nodes
from k8s.pod_security import container_security, pod_security
from k8s.resources import GIB, PodMemory, training_resources
from k8s.rules import check
from k8s.run_spec import RunSpec, check_run, run_metadata
from k8s.training_job import headless_service, network_policy

if TYPE_CHECKING:
    import cdk8s

MEMORY = PodMemory(arena_bytes=0, shm_bytes=4 * GIB, limit_bytes=64 * GIB)
DEADLINE_S = 900
"""A check that hangs is a check that failed."""


def bandwidth_charts(app: cdk8s.App, environment: Environment, run: RunSpec) -> list[cdk8s.Chart]:
    """The check's Job, one pod a node, spares included. `run` names it and its image.

    Raises InvalidRunError and InvalidManifestError as `run_charts` does.
    """
    check_run(environment, run)
    documents = [headless_service(environment, run), network_policy(environment, run), check_job(environment, run)]
    check(environment, documents)
    return [chart_of(app, run.job_name, documents)]


def check_job(environment: Environment, run: RunSpec) -> Manifest:
    """All or nothing, once: a bad node must show, not be replaced."""
    pods = environment.nodes + environment.spares
    metadata = run_metadata(environment, run, run.job_name, "bandwidth")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,
            "activeDeadlineSeconds": DEADLINE_S,
            "podReplacementPolicy": "Failed",
            "template": {"metadata": {"labels": metadata["labels"]}, "spec": _pod_spec(environment, run)},
        },
    }


def _pod_spec(environment: Environment, run: RunSpec) -> dict[str, Any]:
    return {
        **on_gpu_nodes(),
        "restartPolicy": "Never",
        "subdomain": run.job_name,
        "serviceAccountName": SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": 10,
        "securityContext": pod_security(environment.security.root),
        "containers": [
            {
                "name": TRAINER_CONTAINER,
                "image": run.image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "torch.distributed.run"],
                "args": check_command(environment),
                "env": _variables(environment, run),
                "resources": training_resources(environment, MEMORY),
                "securityContext": container_security(environment.security.root),
                "volumeMounts": mounts("fsx", "shm", "tmp"),
                "terminationMessagePath": TERMINATION_LOG,
                "terminationMessagePolicy": "FallbackToLogsOnError",
            }
        ],
        "volumes": [file_system_volume(), shm_volume(MEMORY.shm_bytes), tmp_volume()],
    }


def check_command(environment: Environment) -> list[str]:
    """torchrun's arguments: plain, for nothing is to be recovered here."""
    return [
        f"--nnodes={environment.nodes + environment.spares}",
        f"--nproc-per-node={environment.instance.gpus}",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        "--rdzv-backend=static",
        "--master-addr=$(STEADFAST_CHECK_HOST)",
        "--master-port=$(STEADFAST_STORE_PORT)",
        "--max-restarts=0",
        "-m",
        "trainer.bandwidth",
    ]


def _variables(environment: Environment, run: RunSpec) -> list[dict[str, Any]]:
    """The first pod's full name, the bars as JSON of bytes to GB/s, and NCCL's log of the provider it took."""
    first = f"{run.job_name}-0.{service_host(run.job_name, environment.namespace)}"
    bars = {str(size): bar for size, bar in environment.instance.bus_bandwidth_gb_s.items()}
    return [
        *pod_variables(),
        *run_variables(run.name, run.submission),
        variable("STEADFAST_CHECK_HOST", first),
        variable("STEADFAST_STORE_PORT", str(RENDEZVOUS_PORT)),
        variable("STEADFAST_BARS", json.dumps(bars)),
        *plain({**network_environment(environment, debug=True), "OMP_NUM_THREADS": "1"}),
    ]
