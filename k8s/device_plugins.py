"""Who tells Kubernetes about GPUs and EFA devices: two DaemonSets on our GPU nodes."""

from __future__ import annotations

from typing import Any

from environments.environment import Environment
from k8s.images import efa_device_plugin, nvidia_device_plugin
from k8s.manifest import Manifest
from k8s.names import MANAGED_BY, POOL_GPU, POOL_LABEL
from k8s.placement import DAEMON_TOLERATIONS

NAMESPACE = "kube-system"
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"
WITHOUT_RIGHTS = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def device_plugin_manifests(environment: Environment) -> list[Manifest]:
    """Both DaemonSets. By our own label, not by a list of instance types that ages (aws-do-eks#56), nor by
    labels of a feature discovery that tolerates other taints than ours (k8s-device-plugin#1934)."""
    return [efa_daemon_set(environment), nvidia_daemon_set(environment)]


def efa_daemon_set(environment: Environment) -> Manifest:
    """Advertises vpc.amazonaws.com/efa. On the host's network, so that it takes none of the node's addresses."""
    container = {
        "image": efa_device_plugin(environment),
        "resources": {"requests": {"cpu": "10m", "memory": "20Mi"}, "limits": {"memory": "200Mi"}},
        "volumeMounts": [
            {"name": "device-plugins", "mountPath": DEVICE_PLUGINS},
            {"name": "infiniband", "mountPath": "/dev/infiniband/"},
        ],
    }
    volumes = [_host_path("device-plugins", DEVICE_PLUGINS), _host_path("infiniband", "/dev/infiniband/")]
    return _daemon_set("aws-efa-k8s-device-plugin", container, volumes, host_network=True)


def nvidia_daemon_set(environment: Environment) -> Manifest:
    """Advertises nvidia.com/gpu, and nothing else: with MOFED on it would hand out EFA's device files too."""
    variables = {
        "DEVICE_ID_STRATEGY": "uuid",
        "DEVICE_LIST_STRATEGY": "envvar",
        "FAIL_ON_INIT_ERROR": "true",
        "GDRCOPY_ENABLED": "false",
        "GDS_ENABLED": "false",
        "MIG_STRATEGY": "none",
        "MOFED_ENABLED": "false",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        "NVIDIA_VISIBLE_DEVICES": "all",
        "PASS_DEVICE_SPECS": "false",
    }
    container = {
        "image": nvidia_device_plugin(environment),
        "command": ["nvidia-device-plugin"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": {"cpu": "10m", "memory": "50Mi"}, "limits": {"memory": "300Mi"}},
        "volumeMounts": [{"name": "device-plugins", "mountPath": DEVICE_PLUGINS}],
    }
    return _daemon_set("nvidia-device-plugin", container, [_host_path("device-plugins", DEVICE_PLUGINS)])


def _daemon_set(
    name: str, container: dict[str, Any], volumes: list[dict[str, Any]], *, host_network: bool = False
) -> Manifest:
    labels = {"app.kubernetes.io/name": name}
    network = {"hostNetwork": True} if host_network else {}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {**MANAGED_BY, **labels}},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": {**MANAGED_BY, **labels}},
                "spec": {
                    **network,
                    "automountServiceAccountToken": False,
                    "nodeSelector": {POOL_LABEL: POOL_GPU},
                    "tolerations": DAEMON_TOLERATIONS,
                    "priorityClassName": "system-node-critical",
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{"name": name, "securityContext": WITHOUT_RIGHTS, **container}],
                    "volumes": volumes,
                },
            },
        },
    }


def _host_path(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "hostPath": {"path": path, "type": "Directory"}}
