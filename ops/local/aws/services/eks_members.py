"""EKS: what belongs to a cluster besides nodes: add-ons, access entries, Pod Identity."""

from __future__ import annotations

import secrets
from uuid import uuid4

from moto.core.responses import ActionResult, EmptyResult

from environments.versions import KUBERNETES, addon_versions
from ops.local.aws.cloudformation.state import ACCOUNT, now
from ops.local.aws.services import eks_rules as rules
from ops.local.aws.services import nodegroups
from ops.local.aws.services.eks_base import EksBase
from ops.local.aws.services.eks_store import Cluster
from ops.local.aws.services.lifecycle import GONE, Document, Thing

ADDON_S, ADDON_DELETION_S = 45, 30


class EksMembers(EksBase):
    """Add-ons, access entries and Pod Identity associations."""

    # --- add-ons

    def create_addon(self) -> ActionResult:
        """Starts an add-on."""
        cluster, name = self._active_cluster(), self._get_param("addonName")
        if name not in rules.ADDONS:
            raise rules.InvalidParameterError(f"Addon {name} specified is not supported")
        if name in cluster.addons:
            raise rules.InUseError("Addon already exists.")
        addon = Thing(self._addon_document(cluster, name), "CREATING")
        addon.begin("CREATING", nodegroups.addon_end(cluster, name), ADDON_S)
        cluster.addons[name] = addon
        return ActionResult({"addon": addon.view()})

    def _addon_document(self, cluster: Cluster, name: str) -> Document:
        cluster_name = cluster.document["name"]
        associations = [
            self._associate(cluster, a["serviceAccount"], a["roleArn"], "kube-system", owner=name)[
                "associationArn"
            ]
            for a in self._get_param("podIdentityAssociations") or []
        ]
        return {
            "addonName": name,
            "clusterName": cluster_name,
            "addonArn": f"arn:aws:eks:{self.region}:{ACCOUNT}:addon/{cluster_name}/{name}/{uuid4()}",
            "addonVersion": self._get_param("addonVersion") or f"v1.0.0-eksbuild.{len(cluster.addons) + 1}",
            "health": {"issues": []},
            "createdAt": now(),
            "modifiedAt": now(),
            "serviceAccountRoleArn": self._get_param("serviceAccountRoleArn"),
            "configurationValues": self._get_param("configurationValues"),
            "tags": dict(self._get_param("tags") or {}),
            "podIdentityAssociations": associations,
        }

    def describe_addon(self) -> ActionResult:
        """An add-on."""
        return ActionResult({"addon": self._addon().view()})

    def list_addons(self) -> ActionResult:
        """The names of the add-ons."""
        return ActionResult({"addons": sorted(self._cluster().addons)})

    def update_addon(self) -> ActionResult:
        """Another version or configuration."""
        cluster, addon = self._active_cluster(), self._addon()
        for key in ("addonVersion", "serviceAccountRoleArn", "configurationValues"):
            if self._get_param(key) is not None:
                addon.document[key] = self._get_param(key)
        addon.begin("UPDATING", "ACTIVE", ADDON_S)
        return ActionResult({"update": self._update(cluster, "AddonUpdate")})

    def delete_addon(self) -> ActionResult:
        """Starts the deletion, with the add-on's own associations."""
        cluster, addon = self._cluster(), self._addon()
        addon.begin("DELETING", GONE, ADDON_DELETION_S)
        for key, association in list(cluster.associations.items()):
            if association.document.get("ownerArn") == addon.document["addonArn"] or (
                association.document["associationArn"] in addon.document["podIdentityAssociations"]
            ):
                del cluster.associations[key]
        return ActionResult({"addon": addon.view()})

    def describe_addon_versions(self) -> ActionResult:
        """What add-ons there are, in the versions that the project pins: nobody has the list of all."""
        name, version = self._get_param("addonName"), self._get_param("kubernetesVersion")
        pinned = addon_versions(version) if version in KUBERNETES else {}
        names = [name] if name else sorted(rules.ADDONS)
        return ActionResult({"addons": [_offered(one, version, pinned.get(one)) for one in names]})

    # --- access entries

    def create_access_entry(self) -> ActionResult:
        """Lets a principal in."""
        cluster, principal = self._active_cluster(), self._get_param("principalArn")
        if cluster.document["accessConfig"]["authenticationMode"] == "CONFIG_MAP":
            raise rules.InvalidRequestError(
                "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform "
                "this operation."
            )
        if principal in cluster.access_entries:
            raise rules.InUseError("The specified access entry resource is already in use on this cluster.")
        cluster_name = cluster.document["name"]
        kind, _, name = principal.rpartition(":")[2].partition("/")
        document = {
            "clusterName": cluster_name,
            "principalArn": principal,
            "kubernetesGroups": list(self._get_param("kubernetesGroups") or []),
            "accessEntryArn": (
                f"arn:aws:eks:{self.region}:{ACCOUNT}:access-entry/{cluster_name}/{kind}/{ACCOUNT}/{name}/{uuid4()}"
            ),
            "createdAt": now(),
            "modifiedAt": now(),
            "tags": dict(self._get_param("tags") or {}),
            "username": self._get_param("username") or principal,
            "type": self._get_param("type") or "STANDARD",
        }
        cluster.access_entries[principal] = Thing(document, "")
        return ActionResult({"accessEntry": document})

    def describe_access_entry(self) -> ActionResult:
        """An access entry."""
        return ActionResult({"accessEntry": self._access_entry().document})

    def list_access_entries(self) -> ActionResult:
        """The principals that are let in."""
        return ActionResult({"accessEntries": sorted(self._cluster().access_entries)})

    def update_access_entry(self) -> ActionResult:
        """Other groups or another name."""
        entry = self._access_entry()
        for key in ("kubernetesGroups", "username"):
            if self._get_param(key) is not None:
                entry.document[key] = self._get_param(key)
        return ActionResult({"accessEntry": entry.document})

    def delete_access_entry(self) -> ActionResult:
        """Shuts the principal out."""
        self._access_entry()
        del self._cluster().access_entries[self._get_param("principalArn")]
        return EmptyResult()

    def associate_access_policy(self) -> ActionResult:
        """Gives the principal a policy."""
        entry = self._access_entry()
        policy = {
            "policyArn": self._get_param("policyArn"),
            "accessScope": self._get_param("accessScope"),
            "associatedAt": now(),
            "modifiedAt": now(),
        }
        entry.hidden.setdefault("policies", {})[policy["policyArn"]] = policy
        return ActionResult({**self._entry_key(), "associatedAccessPolicy": policy})

    def disassociate_access_policy(self) -> ActionResult:
        """Takes a policy from the principal."""
        self._access_entry().hidden.get("policies", {}).pop(self._get_param("policyArn"), None)
        return EmptyResult()

    def list_associated_access_policies(self) -> ActionResult:
        """The principal's policies."""
        policies = list(self._access_entry().hidden.get("policies", {}).values())
        return ActionResult({**self._entry_key(), "associatedAccessPolicies": policies})

    def _entry_key(self) -> Document:
        return {"clusterName": self._get_param("name"), "principalArn": self._get_param("principalArn")}

    # --- Pod Identity

    def create_pod_identity_association(self) -> ActionResult:
        """Gives a service account a role."""
        document = self._associate(
            self._active_cluster(),
            self._get_param("serviceAccount"),
            self._get_param("roleArn"),
            self._get_param("namespace"),
        )
        document["tags"] = dict(self._get_param("tags") or {})
        return ActionResult({"association": document})

    def _associate(self, cluster: Cluster, account: str, role: str, namespace: str, owner: str = "") -> Document:
        for found in cluster.associations.values():
            if (found.document["namespace"], found.document["serviceAccount"]) == (namespace, account):
                raise rules.InUseError(f"Association already exists: {found.document['associationId']}")
        rules.check_role(role)
        key, name = f"a-{secrets.token_hex(9)[:17]}", cluster.document["name"]
        document = {
            "clusterName": name,
            "namespace": namespace,
            "serviceAccount": account,
            "roleArn": role,
            "associationId": key,
            "associationArn": f"arn:aws:eks:{self.region}:{ACCOUNT}:podidentityassociation/{name}/{key}",
            "createdAt": now(),
            "modifiedAt": now(),
            "tags": {},
        }
        if owner:
            document["ownerArn"] = f"arn:aws:eks:{self.region}:{ACCOUNT}:addon/{name}/{owner}"
        cluster.associations[key] = Thing(document, "")
        return document

    def describe_pod_identity_association(self) -> ActionResult:
        """An association."""
        return ActionResult({"association": self._association().document})

    def list_pod_identity_associations(self) -> ActionResult:
        """The associations, of one namespace or service account if asked."""
        wanted = {k: self._get_param(k) for k in ("namespace", "serviceAccount") if self._get_param(k)}
        found = [
            thing.document
            for thing in self._cluster().associations.values()
            if all(thing.document[key] == value for key, value in wanted.items())
        ]
        return ActionResult({"associations": found})

    def update_pod_identity_association(self) -> ActionResult:
        """Another role."""
        association = self._association()
        rules.check_role(self._get_param("roleArn"))
        association.document["roleArn"] = self._get_param("roleArn")
        return ActionResult({"association": association.document})

    def delete_pod_identity_association(self) -> ActionResult:
        """Takes the role from the service account."""
        document = self._association().document
        del self._cluster().associations[document["associationId"]]
        return ActionResult({"association": document})


def _offered(name: str, kubernetes: str, version: str | None) -> Document:
    fits = {"addonVersion": version, "compatibilities": [{"clusterVersion": kubernetes}]}
    return {"addonName": name, "type": "networking", "addonVersions": [fits] if version else []}
