"""A small Kubernetes on this machine."""

from ops.local.kubernetes.cluster import ClusterError, LocalCluster
from ops.local.kubernetes.nodes import NodeSpec
from ops.local.node.substitutions import Substitutions

__all__ = ["ClusterError", "LocalCluster", "NodeSpec", "Substitutions"]
