"""Names that more than one manifest must agree on: labels, objects, ports, mount paths."""

from __future__ import annotations

# Node labels. infra puts them on the node groups; nothing here relies on labels that others set.
POOL_LABEL = "steadfast/pool"
POOL_GPU = "gpu"
POOL_SYSTEM = "system"
ZONE_LABEL = "topology.kubernetes.io/zone"

# Object labels.
MANAGED_BY = {"app.kubernetes.io/managed-by": "steadfast"}
RUN_LABEL = "steadfast/run"
SUBMISSION_LABEL = "steadfast/submission"
ROLE_LABEL = "steadfast/role"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
"""Both put on pods by the Job controller."""

RESEARCHERS_GROUP = "steadfast-researchers"
"""The Kubernetes group that infra's access entries give to `access.researchers`."""
SERVICE_ACCOUNT = "training"
VOLUME_CLAIM = "fsx"
PRIORITY_CLASS = "steadfast-training"
SECRETS_CLASS = "secrets"
TRAINER_CONTAINER = "trainer"
CONTROL_CONTAINER = "control"

RENDEZVOUS_PORT = 29500
FSX_MOUNT = "/fsx"
SHM_MOUNT = "/dev/shm"
TMP_MOUNT = "/tmp"
SECRETS_MOUNT = "/var/run/secrets/steadfast"

JOB_NAME_LIMIT = 61
"""Job name, a dash and an index of one digit make 63 (job-controller facts; Kubernetes refuses more)."""
DNS_LABEL_LIMIT = 63


def pod_labels(run: str, submission: int, role: str) -> dict[str, str]:
    """Labels of everything that belongs to one submission of a run."""
    return {**MANAGED_BY, RUN_LABEL: run, SUBMISSION_LABEL: str(submission), ROLE_LABEL: role}


def control_name(job_name: str) -> str:
    """Name of the control Job and of the Service in front of it."""
    return f"{job_name}-control"


def service_host(service: str, namespace: str) -> str:
    """A Service's full name: short ones resolve only after a walk through the search list (jobset#603)."""
    return f"{service}.{namespace}.svc.cluster.local"
