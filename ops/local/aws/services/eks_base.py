"""What every part of EKS's API has in common: finding things."""

from __future__ import annotations

from typing import cast
from uuid import uuid4

from moto.core.responses import BaseResponse

from ops.local.aws.cloudformation.state import now
from ops.local.aws.services import eks_rules as rules
from ops.local.aws.services.eks_store import Cluster, clusters
from ops.local.aws.services.lifecycle import Document, Thing, Things


class EksBase(BaseResponse):
    """Finds what a request names, or refuses."""

    def __init__(self) -> None:
        super().__init__(service_name="eks")
        self.automated_parameter_parsing = True

    @property
    def _clusters(self) -> dict[str, Cluster]:
        return clusters(self.region)

    def _cluster(self) -> Cluster:
        name = self._get_param("name") or self._get_param("clusterName")
        if name not in self._clusters:
            raise rules.NotFoundError(f"No cluster found for name: {name}.")
        return self._clusters[name]

    def _active_cluster(self) -> Cluster:
        cluster = self._cluster()
        if cluster.status not in ("ACTIVE", "UPDATING"):
            raise rules.InvalidRequestError(f"Cluster '{cluster.document['name']}' is not in ACTIVE status")
        return cluster

    def _one(self, things: Things, key: str, message: str) -> Thing:
        name = self._get_param(key)
        if name not in things:
            raise rules.NotFoundError(message.format(name))
        return things[name]

    def _nodegroup(self) -> Thing:
        return self._one(self._cluster().nodegroups, "nodegroupName", "No node group found for name: {}.")

    def _addon(self) -> Thing:
        return self._one(self._cluster().addons, "addonName", "No addon: {} found in cluster: ")

    def _access_entry(self) -> Thing:
        message = "The specified principalArn could not be found. You can view your available access entries"
        return self._one(self._cluster().access_entries, "principalArn", message)

    def _association(self) -> Thing:
        return self._one(self._cluster().associations, "associationId", "No association found for ID: {}")

    @staticmethod
    def _update(cluster: Cluster, kind: str) -> Document:
        update = {
            "id": str(uuid4()),
            "status": "Successful",
            "type": kind,
            "params": [],
            "createdAt": now(),
            "errors": [],
        }
        cluster.updates[cast(str, update["id"])] = update
        return update
