"""The run namespace: who may do what in it, how much, and who talks to whom."""

from __future__ import annotations

from typing import Any

from environments.environment import Environment
from k8s.manifest import Manifest
from k8s.names import MANAGED_BY, PRIORITY_CLASS, RESEARCHERS_GROUP, SERVICE_ACCOUNT

READ = ["get", "list", "watch"]
CHANGE = [*READ, "create", "delete", "patch", "update"]
RBAC = "rbac.authorization.k8s.io"
TRAINING_PRIORITY = 1_000_000


def namespace_manifests(environment: Environment) -> list[Manifest]:
    """The namespace first, then what is in it."""
    return [
        _namespace(environment),
        priority_class(),
        service_account(environment),
        quota(environment),
        limits(environment),
        *network_policies(environment),
    ]


def _namespace(environment: Environment) -> Manifest:
    level = "privileged" if environment.security.root else "baseline"
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "audit")}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": environment.namespace, "labels": {**MANAGED_BY, **labels}},
    }


def priority_class() -> Manifest:
    """Above pods that say nothing, so that nobody's web server pushes a training pod from its node."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY_CLASS, "labels": MANAGED_BY},
        "value": TRAINING_PRIORITY,
        "globalDefault": False,
        "preemptionPolicy": "Never",
        "description": "Training and control pods; they wait for room and are not pushed out.",
    }


def service_account(environment: Environment) -> Manifest:
    """Without a role, without a token: a training pod asks the API server nothing."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _in(environment, SERVICE_ACCOUNT),
        "automountServiceAccountToken": False,
    }


def quota(environment: Environment) -> Manifest:
    """What all runs together may have at a time."""
    instance = environment.instance
    nodes = environment.nodes + environment.spares
    gpus = environment.access.quota.gpus or nodes * instance.gpus
    hard = {
        "count/jobs.batch": str(environment.access.quota.jobs),
        "requests.nvidia.com/gpu": str(gpus),
        "requests.vpc.amazonaws.com/efa": str(nodes * instance.efa_interfaces),
        "persistentvolumeclaims": "1",
        "services.loadbalancers": "0",
        "services.nodeports": "0",
    }
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": _in(environment, "runs"),
        "spec": {"hard": hard},
    }


def limits(environment: Environment) -> Manifest:
    """What a container gets that says nothing, so that no forgotten limit takes a node's memory.

    No default CPU limit: it would also be given to training pods, whose CPU request is far above any default.
    """
    default = {"memory": "1Gi"}
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": _in(environment, "defaults"),
        "spec": {"limits": [{"type": "Container", "default": default, "defaultRequest": {**default, "cpu": "1"}}]},
    }


def network_policies(environment: Environment) -> list[Manifest]:
    """Nothing in or out but DNS; each run adds its own pods."""
    dns = {
        "to": [
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
                "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
            }
        ],
        "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
    }
    deny = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    allow = {"podSelector": {}, "policyTypes": ["Egress"], "egress": [dns]}
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": _in(environment, name),
            "spec": spec,
        }
        for name, spec in (("deny-all", deny), ("allow-dns", allow))
    ]


def access_manifests(environment: Environment) -> list[Manifest]:
    """What researchers may do: runs in the run namespace, and look at nodes and volumes."""
    runs = [
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": CHANGE},
        {"apiGroups": [""], "resources": ["services"], "verbs": CHANGE},
        {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": CHANGE},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": CHANGE},
        {"apiGroups": [""], "resources": ["pods"], "verbs": [*READ, "delete"]},
        {"apiGroups": [""], "resources": ["pods/log", "events", "persistentvolumeclaims"], "verbs": READ},
        {"apiGroups": [""], "resources": ["resourcequotas", "limitranges"], "verbs": READ},
    ]
    look = [{"apiGroups": [""], "resources": ["nodes", "persistentvolumes", "namespaces"], "verbs": READ}]
    return [
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": _in(environment, "researcher"), "rules": runs},
        _binding("Role", _in(environment, "researchers"), "researcher"),
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "steadfast-look", "labels": MANAGED_BY},
            "rules": look,
        },
        _binding("ClusterRole", {"name": "steadfast-look", "labels": MANAGED_BY}, "steadfast-look"),
    ]


def _binding(kind: str, metadata: dict[str, Any], role: str) -> Manifest:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": RESEARCHERS_GROUP}],
    }


def _in(environment: Environment, name: str) -> dict[str, Any]:
    return {"name": name, "namespace": environment.namespace, "labels": MANAGED_BY}
