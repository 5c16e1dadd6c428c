"""The file system in the cluster: one static volume, one claim, and the two directories that runs need."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from environments.environment import Environment
from k8s.containers import file_system_volume, mounts, variable
from k8s.images import busybox
from k8s.manifest import Manifest
from k8s.names import FSX_MOUNT, MANAGED_BY, SERVICE_ACCOUNT, VOLUME_CLAIM
from k8s.placement import on_system_nodes

DRIVER = "fsx.csi.aws.com"
MOUNT_OPTIONS = ["flock", "noatime"]


@dataclass(frozen=True)
class LustreVolume:
    """A file system that exists, or will: the strings may hold CDK tokens."""

    file_system_id: str
    dns_name: str
    mount_name: str


def volume(environment: Environment, lustre: LustreVolume) -> Manifest:
    """The persistent volume, for our claim only. Static: provisioning from a claim times out while FSx is
    still creating and tries again until the subnet has no addresses left (fsx-csi#382)."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name(environment), "labels": MANAGED_BY},
        "spec": {
            **_claimed(environment),
            "persistentVolumeReclaimPolicy": "Retain",
            "mountOptions": MOUNT_OPTIONS,
            "claimRef": {"namespace": environment.namespace, "name": VOLUME_CLAIM},
            "csi": {
                "driver": DRIVER,
                "volumeHandle": lustre.file_system_id,
                "volumeAttributes": {"dnsname": lustre.dns_name, "mountname": lustre.mount_name},
            },
        },
    }


def claim(environment: Environment) -> Manifest:
    """The claim that pods name."""
    spec = _claimed(environment)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": VOLUME_CLAIM, "namespace": environment.namespace, "labels": MANAGED_BY},
        "spec": {
            "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"],
            "volumeName": volume_name(environment),
            "resources": {"requests": spec["capacity"]},
        },
    }


def volume_name(environment: Environment) -> str:
    """Volumes have no namespace, so the environment is in the name."""
    return f"{environment.name}-fsx"


def _claimed(environment: Environment) -> dict[str, Any]:
    return {
        "capacity": {"storage": f"{environment.file_system.size_gib}Gi"},
        "accessModes": ["ReadWriteMany"],
        # Empty, not absent: an absent class is the cluster's default one, which would provision.
        "storageClassName": "",
    }


def layout_job(environment: Environment) -> Manifest:
    """Makes runs/ and data/ writable for the image's user: a new file system's root belongs to root.

    Sticky, like /tmp: nobody removes what others made. The name changes with the content, for the template of
    a Job that exists cannot change.
    """
    spec = _layout_spec(environment)
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:8]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"file-system-layout-{digest}",
            "namespace": environment.namespace,
            "labels": MANAGED_BY,
        },
        "spec": spec,
    }


def _layout_spec(environment: Environment) -> dict[str, Any]:
    small = {"cpu": "100m", "memory": "64Mi"}
    container = {
        "name": "layout",
        "image": busybox(environment),
        "command": ["sh", "-c"],
        "args": ['mkdir -p "$RUNS" "$DATA" && chmod 1777 "$RUNS" "$DATA"'],
        "env": [variable("RUNS", f"{FSX_MOUNT}/runs"), variable("DATA", f"{FSX_MOUNT}/data")],
        "resources": {"requests": small, "limits": small},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
        },
        "volumeMounts": mounts("fsx"),
    }
    return {
        "backoffLimit": 20,
        "template": {
            "metadata": {"labels": MANAGED_BY},
            "spec": {
                **on_system_nodes(environment.availability_zone),
                "restartPolicy": "OnFailure",
                "serviceAccountName": SERVICE_ACCOUNT,
                "automountServiceAccountToken": False,
                "securityContext": {"runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [container],
                "volumes": [file_system_volume()],
            },
        },
    }
