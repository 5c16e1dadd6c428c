"""Secrets Manager's secrets as files in training pods; nothing of ours ever reads their values."""

from __future__ import annotations

import json
from typing import Any

from environments.environment import Environment
from environments.rules.people import secret_file
from k8s.manifest import Manifest
from k8s.names import MANAGED_BY, SECRETS_CLASS, SECRETS_MOUNT

DRIVER = "secrets-store.csi.k8s.io"


def secrets_manifests(environment: Environment) -> list[Manifest]:
    """What the Secrets Store driver fetches, by Pod Identity of the service account. None without secrets."""
    if not environment.secrets:
        return []
    objects = [
        {"objectName": name, "objectType": "secretsmanager", "objectAlias": secret_file(name)}
        for name in environment.secrets
    ]
    return [
        {
            "apiVersion": "secrets-store.csi.x-k8s.io/v1",
            "kind": "SecretProviderClass",
            "metadata": {"name": SECRETS_CLASS, "namespace": environment.namespace, "labels": MANAGED_BY},
            "spec": {
                "provider": "aws",
                # JSON is YAML, which is what the driver parses.
                "parameters": {
                    "region": environment.region,
                    "usePodIdentity": "true",
                    "objects": json.dumps(objects),
                },
            },
        }
    ]


def secrets_volumes(environment: Environment) -> list[dict[str, Any]]:
    """The volume for a pod that gets them."""
    if not environment.secrets:
        return []
    attributes = {"secretProviderClass": SECRETS_CLASS}
    return [{"name": "secrets", "csi": {"driver": DRIVER, "readOnly": True, "volumeAttributes": attributes}}]


def secrets_mounts(environment: Environment) -> list[dict[str, Any]]:
    """Where they appear."""
    if not environment.secrets:
        return []
    return [{"name": "secrets", "mountPath": SECRETS_MOUNT, "readOnly": True}]
