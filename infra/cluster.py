"""The EKS cluster: control plane, people, system nodes, and the Lambda that applies our charts."""

from __future__ import annotations

import aws_cdk as cdk
import cdk8s
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_kms as kms
from aws_cdk.lambda_layer_kubectl_v35 import KubectlV35Layer
from constructs import Construct

from environments.environment import Environment
from infra.access import People
from infra.addons import Addons
from infra.kubectl_provider import fit_kubectl_provider
from infra.naming import accept, managed, pin
from infra.observability import control_plane_logs, log_group
from infra.system_nodes import SystemNodes


class Cluster(Construct):
    """Everything of the cluster that does not cost GPU money."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        env: Environment,
        *,
        vpc: ec2.IVpc,
        subnet_id: str,
        lustre_clients_id: str,
        file_system_id: str,
    ) -> None:
        super().__init__(scope, id)
        self._env = env
        self._log_group = log_group(self, "Logs", env, control_plane_logs(env))
        self._key = self._build_key()
        self.cluster = self._build_cluster(vpc)
        cluster_name = self.cluster.cluster_name
        People(self, "People", env, cluster_name)
        self.addons = Addons(self, "AddOns", env, cluster_name, file_system_id)
        system = SystemNodes(
            self,
            "System",
            env,
            cluster_name=cluster_name,
            subnet_id=subnet_id,
            group_ids=[self.cluster.cluster_security_group_id, lustre_clients_id],
        )
        self.addons.around_nodes(system.node_group)

    def add_charts(self, charts: list[cdk8s.Chart]) -> None:
        """Apply charts through the cluster's kubectl provider, in order, once the add-ons run."""
        previous: Construct | None = None
        for chart in charts:
            manifest = self.cluster.add_cdk8s_chart(chart.node.id, chart)
            manifest.node.add_dependency(previous or self.addons)
            previous = manifest

    def _build_key(self) -> kms.Key:
        key = kms.Key(
            self,
            "SecretsKey",
            description=f"Kubernetes secrets of environment {self._env.name}",
            enable_key_rotation=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
            pending_window=cdk.Duration.days(7),
        )
        pin(key, "SecretsKey")
        return key

    def _build_cluster(self, vpc: ec2.IVpc) -> eks.Cluster:
        env = self._env
        types = eks.ClusterLoggingTypes
        cluster = eks.Cluster(
            self,
            "Cluster",
            cluster_name=env.name,
            version=eks.KubernetesVersion.of(env.kubernetes_version),
            vpc=vpc,
            vpc_subnets=[ec2.SubnetSelection(subnet_group_name="private")],
            default_capacity_type=eks.DefaultCapacityType.NODEGROUP,
            default_capacity=0,
            bootstrap_cluster_creator_admin_permissions=False,
            bootstrap_self_managed_addons=False,
            endpoint_access=self._endpoint(),
            secrets_encryption_key=self._key,
            cluster_logging=[
                types.API, types.AUDIT, types.AUTHENTICATOR, types.CONTROLLER_MANAGER, types.SCHEDULER
            ],
            kubectl_provider_options=self._provider(),
            output_config_command=False,
            prune=False,
        )  # fmt: skip
        cluster.node.add_dependency(self._log_group)
        pin(cluster, "Cluster")
        accept(cluster.role, "EKS demands it of the control plane's role", managed("AmazonEKSClusterPolicy"))
        fit_kubectl_provider(cluster, env)
        return cluster

    def _endpoint(self) -> eks.EndpointAccess:
        if self._env.endpoint == "private":
            return eks.EndpointAccess.PRIVATE
        if self._env.endpoint == "cidr":
            return eks.EndpointAccess.PUBLIC_AND_PRIVATE.only_from(*self._env.endpoint_cidrs)
        return eks.EndpointAccess.PUBLIC_AND_PRIVATE

    def _provider(self) -> eks.KubectlProviderOptions | None:
        if self._env.plugins == "by-cli":
            return None
        return eks.KubectlProviderOptions(
            kubectl_layer=KubectlV35Layer(self, "Kubectl"), memory=cdk.Size.mebibytes(1024)
        )
