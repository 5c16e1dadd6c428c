"""CDK's kubectl provider, made to fit: where its functions stand, what they leave behind, what we accept."""

from __future__ import annotations

from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs

from environments.environment import Environment
from infra.naming import accept, managed

_ACCEPTED = (
    *map(managed, (
        "service-role/AWSLambdaBasicExecutionRole",
        "service-role/AWSLambdaVPCAccessExecutionRole",
        "AmazonEC2ContainerRegistryReadOnly",
    )),
    'IAM4[Policy::{"Fn::If":["EksClusterKubectlProviderHandlerHasEcrPublicC426D1A5",{"Fn::Join":["",["arn:",'
    '{"Ref":"AWS::Partition"},":iam::aws:policy/AmazonElasticContainerRegistryPublicReadOnly"]]},'
    '{"Ref":"AWS::NoValue"}]}]',
    "IAM5[Resource::<EksClusterKubectlProviderHandlerDA75FB7A.Arn>:*]",
    "L1",
)  # fmt: skip


def fit_kubectl_provider(cluster: eks.Cluster, env: Environment) -> None:
    """Harmless where the cluster has none.

    With the endpoint open to all addresses its functions stand outside the VPC: inside, their network interfaces
    hold up the deletion of the network by about 18 minutes (quickstart-amazon-eks#418). Their logs would stay for
    ever, under names that nobody finds.
    """
    provider = cluster.node.try_find_child("KubectlProvider")
    if provider is None:
        return
    accept(provider, "CDK's kubectl provider: the policies and the runtime that CDK gives it", *_ACCEPTED)
    for construct in provider.node.find_all():
        if isinstance(construct, lambda_.Function) and env.endpoint == "public":
            function = cast(cdk.CfnResource, construct.node.default_child)
            function.add_property_deletion_override("VpcConfig")
        elif isinstance(construct, logs.LogGroup):
            group = cast(logs.CfnLogGroup, construct.node.default_child)
            group.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
            group.retention_in_days = env.logs.retention_days
