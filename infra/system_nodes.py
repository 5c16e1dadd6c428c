"""Nodes without GPUs: add-ons, controllers, and the pods that hold the rendezvous store."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from environments.environment import Environment
from infra.naming import encrypted_root, instance_tags, node_role, pin
from k8s.names import POOL_LABEL, POOL_SYSTEM

_ROOT_GIB = 100


class SystemNodes(Construct):
    """An untainted group in the environment's zone, so that control pods mount the file system from near."""

    def __init__(
        self,
        scope: Construct,
        id: str,
        env: Environment,
        *,
        cluster_name: str,
        subnet_id: str,
        group_ids: list[str],
    ) -> None:
        super().__init__(scope, id)
        self._env = env
        template = self._build_template(group_ids)
        self.node_group = self._build_group(cluster_name, subnet_id, template)

    def _build_group(self, cluster_name: str, subnet_id: str, template: ec2.CfnLaunchTemplate) -> eks.CfnNodegroup:
        env = self._env
        group = eks.CfnNodegroup(
            self,
            "Group",
            cluster_name=cluster_name,
            node_role=node_role(self, "Role", env).role_arn,
            subnets=[subnet_id],
            ami_type="AL2023_x86_64_STANDARD",
            capacity_type="ON_DEMAND",
            scaling_config=eks.CfnNodegroup.ScalingConfigProperty(
                min_size=env.system_nodes.nodes,
                desired_size=env.system_nodes.nodes,
                max_size=env.system_nodes.nodes + 1,
            ),
            launch_template=eks.CfnNodegroup.LaunchTemplateSpecificationProperty(
                id=template.ref, version=template.attr_latest_version_number
            ),
            labels={POOL_LABEL: POOL_SYSTEM},
            node_repair_config=eks.CfnNodegroup.NodeRepairConfigProperty(enabled=True),
            tags=env.all_tags,
        )
        pin(group, "SystemNodeGroup")
        return group

    def _build_template(self, group_ids: list[str]) -> ec2.CfnLaunchTemplate:
        types = ec2.CfnLaunchTemplate
        template = types(
            self,
            "LaunchTemplate",
            launch_template_data=types.LaunchTemplateDataProperty(
                instance_type=self._env.system_nodes.instance_type,
                security_group_ids=group_ids,
                block_device_mappings=[encrypted_root(_ROOT_GIB)],
                # Two hops: controllers of add-ons ask for their region, and they are not on the host's network.
                metadata_options=types.MetadataOptionsProperty(
                    http_tokens="required", http_put_response_hop_limit=2
                ),
                tag_specifications=instance_tags(self._env, f"{self._env.name}-system"),
            ),
        )
        pin(template, "SystemLaunchTemplate")
        return template
