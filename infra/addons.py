"""EKS add-ons: which, in what order, with whose rights."""

from __future__ import annotations

import functools
import json
from typing import Any

from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from environments.environment import Environment
from environments.versions import addon_versions
from infra.naming import accept, arn, managed, managed_policy, pin, service_principal
from k8s.names import SERVICE_ACCOUNT
from k8s.placement import DAEMON_TOLERATIONS

_CNI_POLICY = "AmazonEKS_CNI_Policy"
_FSX_ACTIONS = (
    "fsx:DescribeFileSystems", "fsx:TagResource", "fsx:UpdateFileSystem",
)  # fmt: skip


class Addons(Construct):
    """Networking and identity before the nodes; what needs a node to run on after them."""

    def __init__(
        self, scope: Construct, id: str, env: Environment, cluster_name: str, file_system_id: str
    ) -> None:
        super().__init__(scope, id)
        self._env = env
        self._cluster_name = cluster_name
        self._file_system_id = file_system_id
        self._versions = addon_versions(env.kubernetes_version)
        self._agent = self._add("eks-pod-identity-agent", {})
        # Network policies do nothing on EKS unless the CNI is told to enforce them.
        cni_role = self._role("Cni", policy=_CNI_POLICY)
        accept(cni_role, "the CNI's own policy, which AWS keeps", managed(_CNI_POLICY))
        self._cni = self._add("vpc-cni", {"enableNetworkPolicy": "true"}, {"aws-node": cni_role})
        self._proxy = self._add("kube-proxy", {})

    def around_nodes(self, nodes: eks.CfnNodegroup) -> None:
        """Order the node group after networking, and add what cannot become active without nodes."""
        nodes.node.add_dependency(self._agent, self._cni, self._proxy)
        later = [
            self._add("coredns", {}),
            self._add("aws-fsx-csi-driver", {}, {"fsx-csi-controller-sa": self._fsx_role()}),
            # The agent tolerates every taint by default; the GPU health checks beside it do not.
            self._add("eks-node-monitoring-agent", {"dcgmAgent": {"tolerations": DAEMON_TOLERATIONS}}),
        ]
        if self._env.secrets:
            later.append(self._add("aws-secrets-store-csi-driver-provider", {"tolerations": DAEMON_TOLERATIONS}))
            self._let_training_read_secrets()
        for addon in later:
            addon.add_resource_dependency(nodes)

    def _add(
        self, name: str, configuration: dict[str, Any], roles: dict[str, iam.Role] | None = None
    ) -> eks.CfnAddon:
        """With Pod Identity on the add-on itself: a pod that starts before its association has no rights."""
        addon = eks.CfnAddon(
            self,
            name,
            addon_name=name,
            addon_version=self._versions[name],
            cluster_name=self._cluster_name,
            configuration_values=json.dumps(configuration, sort_keys=True) if configuration else None,
            resolve_conflicts="OVERWRITE",
            preserve_on_delete=False,
            pod_identity_associations=[
                eks.CfnAddon.PodIdentityAssociationProperty(role_arn=role.role_arn, service_account=account)
                for account, role in roles.items()
            ]
            if roles
            else None,
        )
        if roles:
            addon.add_resource_dependency(self._agent)
        return addon

    def _role(
        self, id: str, *, policy: str | None = None, statements: list[iam.PolicyStatement] | None = None
    ) -> iam.Role:
        role = iam.Role(
            self,
            f"{id}Role",
            assumed_by=_pods(),
            managed_policies=[managed_policy(policy)] if policy else None,
            inline_policies={"rights": iam.PolicyDocument(statements=statements)} if statements else None,
        )
        pin(role, f"{id}Role")
        return role

    def _fsx_role(self) -> iam.Role:
        """Volumes are static, so the driver needs no more than the one file system."""
        own = arn(self._env, "fsx", f"file-system/{self._file_system_id}")
        return self._role("FsxCsi", statements=[iam.PolicyStatement(actions=list(_FSX_ACTIONS), resources=[own])])

    def _let_training_read_secrets(self) -> None:
        actions = ["secretsmanager:GetSecretValue", "secretsmanager:DescribeSecret"]
        # Secrets Manager puts six characters of its own behind a name.
        names = [arn(self._env, "secretsmanager", f"secret:{name}-??????") for name in self._env.secrets]
        role = self._role("Secrets", statements=[iam.PolicyStatement(actions=actions, resources=names)])
        eks.CfnPodIdentityAssociation(
            self,
            "SecretsAssociation",
            cluster_name=self._cluster_name,
            namespace=self._env.namespace,
            service_account=SERVICE_ACCOUNT,
            role_arn=role.role_arn,
        ).add_resource_dependency(self._agent)


@functools.cache
def _pods() -> iam.SessionTagsPrincipal:
    """Pod Identity's principal; it tags its sessions."""
    return iam.SessionTagsPrincipal(service_principal("pods.eks"))
