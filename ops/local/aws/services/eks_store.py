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
    """Whether time has come for any cluster or add-on; node groups wait for their instances besides."""
    return any(cluster.is_due or cluster.addons.anything_due for _, cluster in all_clusters())


def settle_all() -> None:
    """Lets time pass in every cluster."""
    for region, cluster in all_clusters():
        cluster.addons.settle(lambda _, addon: _degrade(addon))
        if cluster.is_due and cluster.settle() == GONE:
            _remove(region, cluster)


def _degrade(addon: Thing) -> None:
    if addon.status == "DEGRADED":
        message = "The add-on is unhealthy because it doesn't have the desired number of replicas."
        issue = {"code": "InsufficientNumberOfReplicas", "message": message, "resourceIds": []}
        addon.document["health"] = {"issues": [issue]}


def _remove(region: str, cluster: Cluster) -> None:
    del clusters(region)[cluster.document["name"]]
    stuck = interfaces.remove(region, cluster.hidden["interfaces"])
    if not stuck:
        group = cluster.document["resourcesVpcConfig"]["clusterSecurityGroupId"]
        interfaces.ec2(region).delete_security_group(group_id=group)
