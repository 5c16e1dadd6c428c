"""What training, control and check containers have in common: variables, volumes, mounts."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from environments.environment import Environment
from environments.rules.capacity import PLANNED_STOP
from k8s.names import FSX_MOUNT, SHM_MOUNT, TMP_MOUNT, VOLUME_CLAIM

GIB = 1024**3
TERMINATION_LOG = "/dev/termination-log"


def variable(name: str, value: str) -> dict[str, Any]:
    """One environment variable."""
    return {"name": name, "value": value}


def from_field(name: str, path: str) -> dict[str, Any]:
    """A variable that Kubernetes fills in from the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def pod_variables() -> list[dict[str, Any]]:
    """Who and where the pod is. First in every list: arguments and later values may refer to them."""
    return [
        from_field("POD_NAME", "metadata.name"),
        from_field("POD_UID", "metadata.uid"),
        from_field("POD_IP", "status.podIP"),
        from_field("NODE_NAME", "spec.nodeName"),
    ]


def run_variables(run: str, submission: int) -> list[dict[str, Any]]:
    """The run and its paths; no path occurs anywhere but in variables and mounts."""
    return [
        variable("STEADFAST_RUN", run),
        variable("STEADFAST_SUBMISSION", str(submission)),
        variable("STEADFAST_RUN_DIR", f"{FSX_MOUNT}/runs/{run}"),
        variable("STEADFAST_DATA_DIR", f"{FSX_MOUNT}/data"),
        variable("STEADFAST_SHM_DIR", SHM_MOUNT),
        variable("STEADFAST_TERMINATION_LOG", TERMINATION_LOG),
        variable("TMPDIR", TMP_MOUNT),
    ]


def stop_variables(environment: Environment) -> list[dict[str, Any]]:
    """When all ranks stop by themselves, as seconds since the epoch; only a Capacity Block has an end."""
    block = environment.capacity_block
    if block is None:
        return []
    stop = (block.end - PLANNED_STOP).astimezone(UTC)
    return [variable("STEADFAST_STOP_AT", str(int(stop.timestamp())))]


def file_system_volume() -> dict[str, Any]:
    """The claim that storage.py binds."""
    return {"name": "fsx", "persistentVolumeClaim": {"claimName": VOLUME_CLAIM}}


def shm_volume(size_bytes: int) -> dict[str, Any]:
    """/dev/shm in memory: Kubernetes' own is 64 MiB, and a hostPath would outlive the pod (nccl#525)."""
    return {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{size_bytes // GIB}Gi"}}


def tmp_volume() -> dict[str, Any]:
    """Compile caches and sockets, on the node's own disks."""
    return {"name": "tmp", "emptyDir": {"sizeLimit": "50Gi"}}


def mounts(*names: str) -> list[dict[str, Any]]:
    """Mounts of the volumes above by name."""
    paths = {"fsx": FSX_MOUNT, "shm": SHM_MOUNT, "tmp": TMP_MOUNT}
    return [{"name": name, "mountPath": paths[name]} for name in names]


def plain(variables: dict[str, str]) -> list[dict[str, Any]]:
    """Variables with values, in a stable order."""
    return [variable(name, value) for name, value in sorted(variables.items())]
