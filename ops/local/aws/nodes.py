"""The seam to the local Kubernetes: instances of node groups become its nodes."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from ops.local.aws.settings import LIVE
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.layout import Layout
from ops.local.kubernetes.nodes import NodeSpec as LocalNodeSpec

NOT_FOUND, CONFLICT = 404, 409


@dataclass(frozen=True)
class NodeSpec:
    """What a kubelet would tell of itself and its instance."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    allocatable: Mapping[str, str]
    """Quantities: cpu, memory, pods, nvidia.com/gpu, vpc.amazonaws.com/efa, hugepages-2Mi."""
    provider_id: str
    address: str


class NodeMaker(Protocol):
    """Makes and removes nodes of the local Kubernetes."""

    def add(self, node: NodeSpec) -> None:
        """Brings the node up; no error if it is there."""

    def remove(self, name: str) -> None:
        """Takes the node away; no error if it is gone."""


class KubernetesNodes:
    """Registers Node objects, as kubelets do, in the Kubernetes of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._core: Any = client.CoreV1Api(config.new_client_from_config(str(kubeconfig)))

    def add(self, node: NodeSpec) -> None:
        """Creates the Node with its status."""
        try:
            self._core.create_node(_node_object(node))
        except ApiException as error:
            if error.status != CONFLICT:
                raise

    def remove(self, name: str) -> None:
        """Deletes the Node."""
        try:
            self._core.delete_node(name)
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise


def _node_object(node: NodeSpec) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name, **node.labels}},
        "spec": {"providerID": node.provider_id, "taints": [dict(taint) for taint in node.taints]},
        "status": {
            "capacity": dict(node.allocatable),
            "allocatable": dict(node.allocatable),
            "addresses": [
                {"type": "InternalIP", "address": node.address},
                {"type": "Hostname", "address": node.name},
            ],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "KubeletReady",
                    "message": "kubelet is posting ready status",
                }
            ],
        },
    }


class LocalClusterNodes:
    """Nodes of the project's own local Kubernetes, which run pods as processes."""

    def __init__(self, kubeconfig: Path) -> None:
        self._cluster = LocalCluster(_state_dir(kubeconfig))

    def add(self, node: NodeSpec) -> None:
        """Brings a node with its kubelet up."""
        labels = {"steadfast.dev/instance-id": node.provider_id.rpartition("/")[2], **node.labels}
        taints = tuple(dict(taint) for taint in node.taints)
        self._cluster.add_node(LocalNodeSpec(node.name, labels, taints, dict(node.allocatable)))

    def remove(self, name: str) -> None:
        """Ends the node's processes and takes its object away."""
        try:
            self._cluster.remove_node(name)
        except ApiException as error:
            if error.status != NOT_FOUND:
                raise


def _state_dir(kubeconfig: Path) -> Path:
    """The state directory whose local Kubernetes has this kubeconfig."""
    found = next((p for p in kubeconfig.parents if Layout(p).kubeconfig == kubeconfig), None)
    if found is None:
        raise ValueError(f"{kubeconfig} is no kubeconfig of a local Kubernetes")
    return found


def is_local_cluster(kubeconfig: Path) -> bool:
    """Whether the kubeconfig is one of the project's own local Kubernetes."""
    return any(Layout(parent).kubeconfig == kubeconfig for parent in kubeconfig.parents)


def configured() -> NodeMaker | None:
    """The node maker that the settings name; None without a Kubernetes."""
    settings = LIVE.current
    if settings.kubeconfig is None:
        return None
    if settings.node_maker:
        module, _, name = settings.node_maker.partition(":")
        return cast(NodeMaker, getattr(importlib.import_module(module), name)(settings.kubeconfig))
    maker = LocalClusterNodes if is_local_cluster(settings.kubeconfig) else KubernetesNodes
    return maker(settings.kubeconfig)
