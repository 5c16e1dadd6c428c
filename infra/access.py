"""Who enters the cluster: access entries, and nothing else. Its creator is CloudFormation's role, not a person."""

from __future__ import annotations

from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from environments.environment import Environment
from infra.naming import partition
from k8s.names import RESEARCHERS_GROUP

_ADMIN_POLICY = "AmazonEKSClusterAdminPolicy"


class People(Construct):
    """Admins by EKS's own policy; researchers by a Kubernetes group whose rights are in k8s/namespace.py."""

    def __init__(self, scope: Construct, id: str, env: Environment, cluster_name: str) -> None:
        super().__init__(scope, id)
        for number, role in enumerate(env.access.admins, 1):
            eks.CfnAccessEntry(
                self,
                f"Admin{number}",
                cluster_name=cluster_name,
                principal_arn=role,
                type="STANDARD",
                access_policies=[_admin_policy()],
            )
        for number, role in enumerate(env.access.researchers, 1):
            eks.CfnAccessEntry(
                self,
                f"Researcher{number}",
                cluster_name=cluster_name,
                principal_arn=role,
                type="STANDARD",
                kubernetes_groups=[RESEARCHERS_GROUP],
            )


def _admin_policy() -> eks.CfnAccessEntry.AccessPolicyProperty:
    return eks.CfnAccessEntry.AccessPolicyProperty(
        policy_arn=f"arn:{partition()}:eks::aws:cluster-access-policy/{_ADMIN_POLICY}",
        access_scope=eks.CfnAccessEntry.AccessScopeProperty(type="cluster"),
    )
