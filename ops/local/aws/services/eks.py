"""EKS: clusters, node groups, add-ons, access entries, Pod Identity, with the time and refusals of AWS."""

from __future__ import annotations

import base64
import secrets

from moto.core.responses import ActionResult, EmptyResult

from ops.local.aws.cloudformation.state import ACCOUNT, now
from ops.local.aws.services import clock, interfaces, nodegroups
from ops.local.aws.services import eks_rules as rules
from ops.local.aws.services.eks_members import EksMembers
from ops.local.aws.services.eks_store import Cluster, settle_all, something_due
from ops.local.aws.services.lifecycle import GONE, Document, Thing
from ops.local.aws.services.routing import answer_with
from ops.local.aws.settings import LIVE

# how long AWS takes, in seconds: facts of the EKS user guide and of field reports
CLUSTER_CREATION_S, CLUSTER_DELETION_S, CLUSTER_UPDATE_S = 600, 240, 120
NODEGROUP_S, NODEGROUP_DELETION_S = 90, 120


class EksApi(EksMembers):
    """Clusters and node groups; add-ons and the rest by inheritance."""

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


def install() -> None:
    """Puts our API in moto's place and lets its time pass."""
    answer_with("eks", EksApi)
    clock.every_tick(something_due, settle_all)
    clock.every_tick(nodegroups.something_to_do, nodegroups.reconcile_all)
