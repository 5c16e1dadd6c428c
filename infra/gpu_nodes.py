"""GPU nodes: launch template, placement, node group, and the scale-up of a Capacity Block."""

from __future__ import annotations

import json
from datetime import UTC, timedelta

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from constructs import Construct

from environments.environment import Environment
from environments.sections import CapacityBlock, OnDemand, Reservation
from infra.naming import encrypted_root, instance_tags, node_role, pin
from infra.user_data import gpu_user_data
from k8s.names import POOL_GPU, POOL_LABEL
from k8s.placement import GPU_TAINT

_EFFECTS = {"NoSchedule": "NO_SCHEDULE"}
"""EKS spells Kubernetes' words its own way."""
_ROOT_GIB = 200
_SCALE_UP_AFTER = timedelta(minutes=1)
"""After a block's start: instances launch only once it is active."""


class GpuNodes(Construct):
    """A node group that starts empty; `steadfast scale` fills it."""

    def __init__(
        self, scope: Construct, id: str, env: Environment, *, subnet_id: str, group_ids: list[str]
    ) -> None:
        super().__init__(scope, id)
        self._env = env
        self.desired = cdk.CfnParameter(
            cdk.Stack.of(self),
            "DesiredNodes",
            type="Number",
            default=0,
            min_value=0,
            max_value=env.nodes + env.spares,
            description="Nodes now. `steadfast deploy` passes the live size, so that an update never scales down.",
        )
        self.role = node_role(self, "Role", env)
        self.launch_template = self._build_launch_template(group_ids)
        self.node_group = self._build_node_group(subnet_id)
        if isinstance(env.capacity, CapacityBlock):
            self._build_scale_up(env.capacity)

    def _build_launch_template(self, group_ids: list[str]) -> ec2.CfnLaunchTemplate:
        types = ec2.CfnLaunchTemplate
        template = types(
            self,
            "LaunchTemplate",
            launch_template_name=f"{self._env.name}-gpu",
            launch_template_data=types.LaunchTemplateDataProperty(
                instance_type=self._env.instance_type,
                network_interfaces=self._interfaces(group_ids),
                block_device_mappings=[encrypted_root(_ROOT_GIB)],
                # One hop: pods get their rights by Pod Identity and never the node's.
                metadata_options=types.MetadataOptionsProperty(
                    http_tokens="required", http_put_response_hop_limit=1
                ),
                user_data=cdk.Fn.base64(gpu_user_data(self._env)),
                placement=self._placement(),
                instance_market_options=self._market(),
                capacity_reservation_specification=self._reservation(),
                tag_specifications=instance_tags(self._env, f"{self._env.name}-gpu"),
            ),
        )
        pin(template, "GpuLaunchTemplate")
        return template

    def _interfaces(self, group_ids: list[str]) -> list[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]:
        """Security groups only here: EC2 refuses them at both levels, and EKS adds none of its own then."""
        return [
            ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
                network_card_index=interface.card,
                device_index=interface.device,
                interface_type=interface.type,
                groups=group_ids,
                delete_on_termination=True,
            )
            for interface in self._env.instance.interfaces(self._env.interfaces)
        ]

    def _placement(self) -> ec2.CfnLaunchTemplate.PlacementProperty | None:
        """Ours for on-demand; a reservation's own, since it cannot be moved into one; none for a block."""
        capacity = self._env.capacity
        if isinstance(capacity, OnDemand):
            group = ec2.CfnPlacementGroup(self, "PlacementGroup", strategy="cluster")
            pin(group, "GpuPlacementGroup")
            return ec2.CfnLaunchTemplate.PlacementProperty(group_name=group.ref)
        if isinstance(capacity, Reservation) and capacity.placement_group:
            return ec2.CfnLaunchTemplate.PlacementProperty(group_name=capacity.placement_group)
        return None

    def _market(self) -> ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty | None:
        if not isinstance(self._env.capacity, CapacityBlock):
            return None
        return ec2.CfnLaunchTemplate.InstanceMarketOptionsProperty(market_type="capacity-block")

    def _reservation(self) -> ec2.CfnLaunchTemplate.CapacityReservationSpecificationProperty | None:
        if isinstance(self._env.capacity, OnDemand):
            return None
        types = ec2.CfnLaunchTemplate
        target = types.CapacityReservationTargetProperty(capacity_reservation_id=self._env.capacity.reservation)
        return types.CapacityReservationSpecificationProperty(capacity_reservation_target=target)

    def _build_node_group(self, subnet_id: str) -> eks.CfnNodegroup:
        env, block = self._env, isinstance(self._env.capacity, CapacityBlock)
        group = eks.CfnNodegroup(
            self,
            "NodeGroup",
            cluster_name=env.name,
            nodegroup_name=env.node_group,
            node_role=self.role.role_arn,
            subnets=[subnet_id],
            ami_type="AL2023_x86_64_NVIDIA",
            capacity_type="CAPACITY_BLOCK" if block else "ON_DEMAND",
            scaling_config=eks.CfnNodegroup.ScalingConfigProperty(
                min_size=0, desired_size=self.desired.value_as_number, max_size=env.nodes + env.spares
            ),
            launch_template=eks.CfnNodegroup.LaunchTemplateSpecificationProperty(
                id=self.launch_template.ref, version=self.launch_template.attr_latest_version_number
            ),
            labels={POOL_LABEL: POOL_GPU},
            taints=[
                eks.CfnNodegroup.TaintProperty(
                    key=GPU_TAINT["key"], value=GPU_TAINT["value"], effect=_EFFECTS[GPU_TAINT["effect"]]
                )
            ],
            # Ends a node before it starts its successor: a reservation has no room for both.
            update_config=eks.CfnNodegroup.UpdateConfigProperty(max_unavailable=1, update_strategy="MINIMAL"),
            force_update_enabled=False,
            node_repair_config=eks.CfnNodegroup.NodeRepairConfigProperty(enabled=True),
            tags=env.all_tags,
        )
        pin(group, "GpuNodeGroup")
        return group

    def _build_scale_up(self, block: CapacityBlock) -> None:
        """EKS scales a block's group down by itself 40 minutes before the end, but never up.

        Scheduler refuses a time in the past, so an environment that comes after its block has begun goes without
        a schedule: `steadfast deploy` says so in a parameter, and `steadfast scale` fills the group.
        """
        env, stack = self._env, cdk.Stack.of(self)
        begun = cdk.CfnParameter(
            stack,
            "BlockHasBegun",
            allowed_values=["yes", "no"],
            default="no",
            description="yes: no schedule is made, and `steadfast scale` fills the node group.",
        )
        ahead = cdk.CfnCondition(stack, "BlockIsAhead", expression=cdk.Fn.condition_equals(begun, "no"))
        role = iam.Role(
            self,
            "ScaleUpRole",
            assumed_by=iam.ServicePrincipal(
                "scheduler.amazonaws.com", conditions={"StringEquals": {"aws:SourceAccount": stack.account}}
            ),
            inline_policies={
                "scale": iam.PolicyDocument(
                    statements=[
                        iam.PolicyStatement(
                            actions=["eks:UpdateNodegroupConfig"], resources=[self.node_group.attr_arn]
                        )
                    ]
                )
            },
        )
        at = (block.start + _SCALE_UP_AFTER).astimezone(UTC)
        schedule = scheduler.CfnSchedule(
            self,
            "ScaleUp",
            description=f"Fills {env.node_group} when its Capacity Block starts",
            schedule_expression=f"at({at:%Y-%m-%dT%H:%M:%S})",
            schedule_expression_timezone="UTC",
            flexible_time_window=scheduler.CfnSchedule.FlexibleTimeWindowProperty(mode="OFF"),
            target=scheduler.CfnSchedule.TargetProperty(
                arn=f"arn:{stack.partition}:scheduler:::aws-sdk:eks:updateNodegroupConfig",
                role_arn=role.role_arn,
                input=json.dumps(
                    {
                        "ClusterName": env.name,
                        "NodegroupName": env.node_group,
                        "ScalingConfig": {"DesiredSize": env.nodes + env.spares},
                    }
                ),
            ),
        )
        schedule.add_resource_dependency(self.node_group)
        schedule.cfn_options.condition = ahead
