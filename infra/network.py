"""The VPC, the way out of it, and the two security groups that GPU nodes wear besides the cluster's."""

from __future__ import annotations

import functools

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from environments.environment import Environment
from environments.rules.network import endpoint_services
from infra.naming import pin, service_principal, subnet_masks
from infra.observability import flow_logs, log_group


class Network(Construct):
    """One private subnet per zone; GPU nodes, system nodes and the file system all use the first."""

    def __init__(self, scope: Construct, id: str, env: Environment) -> None:
        super().__init__(scope, id)
        self._env = env
        self.vpc = self._build_vpc()
        self.efa = self._build_efa_group()
        self.lustre_clients = self._build_lustre_clients()
        self._build_flow_log()
        self._build_endpoints()

    @property
    def private_subnets(self) -> list[ec2.ISubnet]:
        """One per zone, the environment's own zone first."""
        return self.vpc.private_subnets if self._env.network.egress == "nat" else self.vpc.isolated_subnets

    def _build_vpc(self) -> ec2.Vpc:
        env, nat = self._env, self._env.network.egress == "nat"
        private = ec2.SubnetType.PRIVATE_WITH_EGRESS if nat else ec2.SubnetType.PRIVATE_ISOLATED
        private_mask, public_mask = subnet_masks(env.network.cidr)
        # Private first, so that the way out can change without a private subnet changing its addresses.
        subnets = [ec2.SubnetConfiguration(name="private", subnet_type=private, cidr_mask=private_mask)]
        if nat:
            public = ec2.SubnetType.PUBLIC
            subnets.append(
                ec2.SubnetConfiguration(
                    name="public", subnet_type=public, cidr_mask=public_mask, map_public_ip_on_launch=False
                )
            )
        vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr(env.network.cidr),
            availability_zones=[env.availability_zone, env.second_availability_zone],
            subnet_configuration=subnets,
            nat_gateways=1 if nat else 0,
            # Restricting it takes a Lambda-backed custom resource; nothing of ours uses the default group.
            restrict_default_security_group=False,
        )
        pin(vpc, "Vpc")
        return vpc

    def _build_efa_group(self) -> ec2.SecurityGroup:
        """All traffic to itself, in and out. An egress rule to 0.0.0.0/0 does not cover EFA's transport, and then
        every collective fails or falls back to TCP (gardener-extension-provider-aws#1832, awsome#546)."""
        group = ec2.SecurityGroup(
            self,
            "Efa",
            vpc=self.vpc,
            description="EFA between GPU nodes: all traffic to itself",
            allow_all_outbound=False,
        )
        pin(group, "EfaSecurityGroup")
        own, everything = group.security_group_id, "-1"
        inward = ec2.CfnSecurityGroupIngress(
            self, "EfaIn", group_id=own, source_security_group_id=own, ip_protocol=everything, description="EFA"
        )
        outward = ec2.CfnSecurityGroupEgress(
            self,
            "EfaOut",
            group_id=own,
            destination_security_group_id=own,
            ip_protocol=everything,
            description="EFA",
        )
        pin(inward, "EfaIn")
        pin(outward, "EfaOut")
        return group

    def _build_lustre_clients(self) -> ec2.SecurityGroup:
        """On every node that mounts the file system; the storage stack admits it."""
        group = ec2.SecurityGroup(
            self,
            "LustreClients",
            vpc=self.vpc,
            description="Clients of the Lustre file system",
            allow_all_outbound=False,
        )
        pin(group, "LustreClientsSecurityGroup")
        return group

    def _build_flow_log(self) -> None:
        group = log_group(self, "FlowLogGroup", self._env, flow_logs(self._env))
        role = iam.Role(self, "FlowLogRole", assumed_by=service_principal("vpc-flow-logs"))
        self.vpc.add_flow_log(
            "Rejected",
            destination=ec2.FlowLogDestination.to_cloud_watch_logs(group, role),
            traffic_type=ec2.FlowLogTrafficType.REJECT,
        )

    def _build_endpoints(self) -> None:
        """S3 always, since it costs nothing; the rest only where there is no other way out."""
        self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        if self._env.network.egress == "nat":
            return
        group = ec2.SecurityGroup(
            self,
            "Endpoints",
            vpc=self.vpc,
            description="VPC endpoints: HTTPS from the VPC",
            allow_all_outbound=False,
        )
        group.add_ingress_rule(ec2.Peer.ipv4(self._env.network.cidr), ec2.Port.tcp(443), "HTTPS from the VPC")
        for service in endpoint_services(self._env):
            self.vpc.add_interface_endpoint(
                f"Endpoint-{service}",
                service=_endpoint_service(self._env.region, service),
                private_dns_enabled=True,
                security_groups=[group],
                subnets=ec2.SubnetSelection(subnet_group_name="private"),
                open=False,
            )


@functools.cache
def _endpoint_service(region: str, service: str) -> ec2.InterfaceVpcEndpointService:
    return ec2.InterfaceVpcEndpointService(f"com.amazonaws.{region}.{service}", 443)
