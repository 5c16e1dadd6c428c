"""EKS's clusters, in moto's backend, and how their time passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from moto.eks.models import eks_backends

from ops.local.aws.cloudformation.state import ACCOUNT
from ops.local.aws.services import interfaces
from ops.local.aws.services.lifecycle import GONE, Document, Thing, Things


@dataclass
class Cluster(Thing):
    """A cluster with everything in it."""

    nodegroups: Things = field(default_factory=Things)
    addons: Things = field(default_factory=Things)
    access_entries: Things = field(default_factory=Things)
    associations: Things = field(default_factory=Things)
    updates: dict[str, Document] = field(default_factory=dict)

    def everything(self) -> Iterator[Thing]:
        """The cluster itself and all in it."""
        yield self
        for things in (self.nodegroups, self.addons, self.access_entries, self.associations):
            yield from list(things.values())


def clusters(region: str) -> dict[str, Cluster]:
    """The region's clusters by name."""
    return cast(dict[str, Cluster], eks_backends[ACCOUNT][region].clusters)


def regions() -> list[str]:
    """The regions that anything was asked of."""
    return list(dict.keys(eks_backends[ACCOUNT]))


def all_clusters() -> Iterator[tuple[str, Cluster]]:
    """Every cluster with its region."""
    for region in regions():
        for cluster in list(clusters(region).values()):
            yield region, cluster


def something_due() -> bool:
    """Whether time has come for anything."""
    return any(thing.is_due for _, cluster in all_clusters() for thing in cluster.everything())


def settle_all() -> None:
    """Lets time pass in every cluster."""
    for region, cluster in all_clusters():
        for things in (cluster.nodegroups, cluster.addons):
            things.settle(lambda _, thing: _end_creation(thing))
        if cluster.is_due and cluster.settle() == GONE:
            _remove(region, cluster)


def _end_creation(thing: Thing) -> None:
    """A node group that got no instances ends in CREATE_FAILED (containers-roadmap#2204)."""
    if thing.status == "DEGRADED":
        message = "The add-on is unhealthy because it doesn't have the desired number of replicas."
        issue = {"code": "InsufficientNumberOfReplicas", "message": message, "resourceIds": []}
        thing.document["health"] = {"issues": [issue]}
    if thing.hidden.pop("creating", False) and thing.document["health"]["issues"]:
        thing.status = "CREATE_FAILED"


def _remove(region: str, cluster: Cluster) -> None:
    del clusters(region)[cluster.document["name"]]
    stuck = interfaces.remove(region, cluster.hidden["interfaces"])
    if not stuck:
        group = cluster.document["resourcesVpcConfig"]["clusterSecurityGroupId"]
        interfaces.ec2(region).delete_security_group(group_id=group)
