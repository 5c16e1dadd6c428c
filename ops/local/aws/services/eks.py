"""EKS: clusters, node groups, add-ons, access entries, Pod Identity, with the time and refusals of AWS."""

from __future__ import annotations

import base64
import secrets
from uuid import uuid4

from moto.core.responses import ActionResult, BaseResponse, EmptyResult

from ops.local.aws.cloudformation.state import ACCOUNT, now
from ops.local.aws.services import clock, interfaces, nodegroups
from ops.local.aws.services import eks_rules as rules
from ops.local.aws.services.eks_store import Cluster, clusters, settle_all, something_due
from ops.local.aws.services.lifecycle import GONE, Document, Thing, Things
from ops.local.aws.services.routing import answer_with
from ops.local.aws.settings import LIVE

# how long AWS takes, in seconds: facts of the EKS user guide and of field reports
CLUSTER_CREATION_S, CLUSTER_DELETION_S, CLUSTER_UPDATE_S = 600, 240, 120
ADDON_S, ADDON_DELETION_S = 45, 30
NODEGROUP_S, NODEGROUP_DELETION_S = 90, 120


class EksApi(BaseResponse):
    """One method for each action."""

    def __init__(self) -> None:
        super().__init__(service_name="eks")
        self.automated_parameter_parsing = True

    # --- clusters

    def create_cluster(self) -> ActionResult:
        """Starts a cluster in at least two zones."""
        name, asked = self._get_param("name"), dict(self.params)
        if name in self._clusters:
            raise rules.InUseError(f"Cluster already exists with name: {name}")
        version = asked.get("version") or rules.VERSIONS[-2]
        rules.check_version(version)
        rules.check_role(asked["roleArn"])
        vpc = dict(asked["resourcesVpcConfig"])
        vpc["vpcId"] = rules.check_control_plane_zones(self.region, name, vpc["subnetIds"])
        cluster = Cluster(self._cluster_document(name, version, vpc, asked), "CREATING")
        self._control_plane(cluster, name, vpc)
        cluster.begin("CREATING", "ACTIVE", CLUSTER_CREATION_S)
        self._clusters[name] = cluster
        return ActionResult({"cluster": cluster.view()})

    def _cluster_document(self, name: str, version: str, vpc: Document, asked: Document) -> Document:
        kubeconfig = LIVE.current.kubeconfig
        endpoint, authority = nodegroups.api_of(kubeconfig) if kubeconfig else ("", "")
        issuer = f"https://oidc.eks.{self.region}.amazonaws.com/id/{secrets.token_hex(16).upper()}"
        return {
            "name": name,
            "arn": f"arn:aws:eks:{self.region}:{ACCOUNT}:cluster/{name}",
            "createdAt": now(),
            "version": version,
            "platformVersion": "eks.1",
            "endpoint": endpoint or f"https://{secrets.token_hex(16).upper()}.gr7.{self.region}.eks.amazonaws.com",
            "certificateAuthority": {"data": authority or base64.b64encode(b"no certificate").decode()},
            "identity": {"oidc": {"issuer": issuer}},
            "roleArn": asked["roleArn"],
            "resourcesVpcConfig": {
                "endpointPublicAccess": True,
                "endpointPrivateAccess": False,
                "publicAccessCidrs": ["0.0.0.0/0"],
                **vpc,
            },
            "kubernetesNetworkConfig": {
                "serviceIpv4Cidr": "172.20.0.0/16",
                "ipFamily": "ipv4",
                **(asked.get("kubernetesNetworkConfig") or {}),
            },
            "logging": asked.get("logging") or {"clusterLogging": []},
            "encryptionConfig": asked.get("encryptionConfig") or [],
            "accessConfig": {"authenticationMode": "CONFIG_MAP", **(asked.get("accessConfig") or {})},
            "upgradePolicy": asked.get("upgradePolicy") or {"supportType": "EXTENDED"},
            "deletionProtection": bool(asked.get("deletionProtection")),
            "tags": dict(asked.get("tags") or {}),
            "health": {"issues": []},
        }

    def _control_plane(self, cluster: Cluster, name: str, vpc: Document) -> None:
        backend = interfaces.ec2(self.region)
        group = backend.create_security_group(
            f"eks-cluster-sg-{name}-{secrets.randbelow(10**9)}",
            "EKS created security group applied to ENI that is attached to EKS Control Plane master nodes",
            vpc["vpcId"],
            tags={"aws:eks:cluster-name": name, f"kubernetes.io/cluster/{name}": "owned"},
        )
        itself = [{"GroupId": group.id}]
        backend.authorize_security_group_ingress(group.id, "-1", None, None, ip_ranges=[], source_groups=itself)
        cluster.document["resourcesVpcConfig"]["clusterSecurityGroupId"] = group.id
        groups = [group.id, *vpc.get("securityGroupIds", [])]
        cluster.hidden["interfaces"] = [
            interfaces.make(self.region, subnet, groups, f"Amazon EKS {name}") for subnet in vpc["subnetIds"][:2]
        ]

    def describe_cluster(self) -> ActionResult:
        """A cluster."""
        return ActionResult({"cluster": self._cluster().view()})

    def list_clusters(self) -> ActionResult:
        """The names of the clusters."""
        return ActionResult({"clusters": sorted(self._clusters)})

    def delete_cluster(self) -> ActionResult:
        """Starts the deletion of a cluster without node groups."""
        cluster = self._cluster()
        if cluster.document["deletionProtection"]:
            raise rules.InvalidRequestError("Cluster deletion protection is enabled. Disable it before deleting.")
        if cluster.nodegroups:
            raise rules.InUseError("Cluster has nodegroups attached")
        if cluster.status != "DELETING":
            cluster.begin("DELETING", GONE, CLUSTER_DELETION_S)
        return ActionResult({"cluster": cluster.view()})

    def update_cluster_config(self) -> ActionResult:
        """Changes access, logging or protection."""
        cluster = self._active_cluster()
        document = cluster.document
        for key in ("resourcesVpcConfig", "logging", "accessConfig", "upgradePolicy"):
            asked = self._get_param(key)
            if asked:
                document[key] = {**document[key], **asked} if key != "logging" else asked
        if self._get_param("deletionProtection") is not None:
            document["deletionProtection"] = bool(self._get_param("deletionProtection"))
        cluster.begin("UPDATING", "ACTIVE", CLUSTER_UPDATE_S)
        return ActionResult({"update": self._update(cluster, "ConfigUpdate")})

    def update_cluster_version(self) -> ActionResult:
        """One minor version up."""
        cluster, version = self._active_cluster(), self._get_param("version")
        rules.check_version(version)
        have, want = (int(v.split(".")[1]) for v in (cluster.document["version"], version))
        if want != have + 1:
            raise rules.InvalidParameterError(
                f"Unsupported Kubernetes minor version update from {cluster.document['version']} to {version}"
            )
        cluster.document["version"] = version
        cluster.begin("UPDATING", "ACTIVE", CLUSTER_UPDATE_S)
        return ActionResult({"update": self._update(cluster, "VersionUpdate")})

    def describe_update(self) -> ActionResult:
        """An update."""
        found = self._cluster().updates.get(self._get_param("updateId"))
        if found is None:
            raise rules.NotFoundError(f"No update found for ID: {self._get_param('updateId')}")
        return ActionResult({"update": found})

    def list_updates(self) -> ActionResult:
        """The ids of the updates."""
        return ActionResult({"updateIds": list(self._cluster().updates)})

    def _update(self, cluster: Cluster, kind: str) -> Document:
        update = {
            "id": str(uuid4()),
            "status": "Successful",
            "type": kind,
            "params": [],
            "createdAt": now(),
            "errors": [],
        }
        cluster.updates[update["id"]] = update
        return update

    # --- node groups

    def create_nodegroup(self) -> ActionResult:
        """Starts a node group."""
        cluster, name = self._active_cluster(), self._get_param("nodegroupName")
        if name in cluster.nodegroups:
            cluster_name = cluster.document["name"]
            raise rules.InUseError(f"NodeGroup already exists with name {name} and cluster name {cluster_name}")
        rules.check_role(self._get_param("nodeRole"))
        group = nodegroups.made(cluster, dict(self.params), self.region)
        group.begin("CREATING", "ACTIVE", NODEGROUP_S)
        cluster.nodegroups[name] = group
        return ActionResult({"nodegroup": group.view()})

    def describe_nodegroup(self) -> ActionResult:
        """A node group."""
        return ActionResult({"nodegroup": self._nodegroup().view()})

    def list_nodegroups(self) -> ActionResult:
        """The names of the node groups."""
        return ActionResult({"nodegroups": sorted(self._cluster().nodegroups)})

    def update_nodegroup_config(self) -> ActionResult:
        """Scales, labels, taints."""
        cluster, group = self._cluster(), self._nodegroup()
        self._refuse_unless_active(group)
        nodegroups.change(group, dict(self.params))
        group.begin("UPDATING", "ACTIVE", NODEGROUP_S)
        return ActionResult({"update": self._update(cluster, "ConfigUpdate")})

    def update_nodegroup_version(self) -> ActionResult:
        """Another version of the launch template or of Kubernetes."""
        cluster, group = self._cluster(), self._nodegroup()
        self._refuse_unless_active(group)
        nodegroups.change_template(group, self._get_param("launchTemplate"), self.region)
        for key in ("version", "releaseVersion"):
            if self._get_param(key):
                group.document[key] = self._get_param(key)
        group.begin("UPDATING", "ACTIVE", NODEGROUP_S)
        return ActionResult({"update": self._update(cluster, "VersionUpdate")})

    def delete_nodegroup(self) -> ActionResult:
        """Starts the deletion; its instances end first."""
        group = self._nodegroup()
        if group.status != "DELETING":
            group.document["scalingConfig"] = {**group.document["scalingConfig"], "desiredSize": 0}
            group.begin("DELETING", GONE, NODEGROUP_DELETION_S)
        return ActionResult({"nodegroup": group.view()})

    @staticmethod
    def _refuse_unless_active(group: Thing) -> None:
        if group.status != "ACTIVE":
            raise rules.InUseError("Nodegroup cannot be updated as it is currently not in Active State")

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
        """What add-ons there are."""
        name = self._get_param("addonName")
        names = [name] if name else sorted(rules.ADDONS)
        return ActionResult({"addons": [{"addonName": n, "type": "networking"} for n in names]})

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

    # --- tags

    def tag_resource(self) -> ActionResult:
        """Adds tags."""
        self._tags_of(self._get_param("resourceArn")).update(self._get_param("tags"))
        return EmptyResult()

    def untag_resource(self) -> ActionResult:
        """Removes tags."""
        tags = self._tags_of(self._get_param("resourceArn"))
        for key in self._get_param("tagKeys"):
            tags.pop(key, None)
        return EmptyResult()

    def list_tags_for_resource(self) -> ActionResult:
        """The tags."""
        return ActionResult({"tags": self._tags_of(self._get_param("resourceArn"))})

    def _tags_of(self, arn: str) -> dict[str, str]:
        for cluster in self._clusters.values():
            for thing in cluster.everything():
                if arn in thing.document.values():
                    tags: dict[str, str] = thing.document.setdefault("tags", {})
                    return tags
        raise rules.NotFoundError(f"Resource {arn} not found")

    # --- finding things

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


def install() -> None:
    """Puts our API in moto's place and lets its time pass."""
    answer_with("eks", EksApi)
    clock.every_tick(something_due, settle_all)
    clock.every_tick(nodegroups.something_to_do, nodegroups.reconcile_all)
