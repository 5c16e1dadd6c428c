"""The table of kinds the API serves, with the groups and versions that Kubernetes publishes them under."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """One served resource."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """`v1`, `batch/v1`, …"""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The plural with its group, as error messages name it: `jobs.batch`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


POD = Kind("", "v1", "pods", "Pod", True, ("po",), ("status", "log", "eviction"))
NODE = Kind("", "v1", "nodes", "Node", False, ("no",), ("status",))
NAMESPACE = Kind("", "v1", "namespaces", "Namespace", False, ("ns",), ("status",))
SERVICE = Kind("", "v1", "services", "Service", True, ("svc",), ("status",))
CONFIG_MAP = Kind("", "v1", "configmaps", "ConfigMap", True, ("cm",))
SECRET = Kind("", "v1", "secrets", "Secret")
ENDPOINTS = Kind("", "v1", "endpoints", "Endpoints", True, ("ep",))
EVENT = Kind("", "v1", "events", "Event", True, ("ev",))
PERSISTENT_VOLUME = Kind("", "v1", "persistentvolumes", "PersistentVolume", False, ("pv",), ("status",))
CLAIM = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True, ("pvc",), ("status",))
JOB = Kind("batch", "v1", "jobs", "Job", True, (), ("status",))
DAEMON_SET = Kind("apps", "v1", "daemonsets", "DaemonSet", True, ("ds",), ("status",))
BUDGET = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), ("status",))

KINDS: tuple[Kind, ...] = (
    POD,
    NODE,
    NAMESPACE,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    ENDPOINTS,
    EVENT,
    PERSISTENT_VOLUME,
    CLAIM,
    Kind("", "v1", "serviceaccounts", "ServiceAccount", True, ("sa",)),
    Kind("", "v1", "resourcequotas", "ResourceQuota", True, ("quota",), ("status",)),
    Kind("", "v1", "limitranges", "LimitRange", True, ("limits",)),
    JOB,
    DAEMON_SET,
    BUDGET,
    Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", True, ("netpol",)),
    Kind("rbac.authorization.k8s.io", "v1", "roles", "Role"),
    Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    Kind("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False),
    Kind("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False),
    Kind("storage.k8s.io", "v1", "storageclasses", "StorageClass", False, ("sc",)),
    Kind("storage.k8s.io", "v1", "csidrivers", "CSIDriver", False),
    Kind("coordination.k8s.io", "v1", "leases", "Lease"),
    Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False, ("pc",)),
)

_BY_PLURAL = {(k.group, k.version, k.plural): k for k in KINDS}
_BY_KIND = {(k.api_version, k.kind): k for k in KINDS}


def by_plural(group: str, version: str, plural: str) -> Kind | None:
    """The kind behind a path of the API, or None."""
    return _BY_PLURAL.get((group, version, plural))


def by_kind(api_version: str, kind: str) -> Kind | None:
    """The kind an object or an ownerReference names, or None."""
    return _BY_KIND.get((api_version, kind))
