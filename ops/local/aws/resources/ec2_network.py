"""VPCs: subnets, routes, gateways, endpoints, flow logs."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
    delete_once_free,
)


def tag_specs(ctx: Context, kind: str, properties: Properties) -> list[dict[str, Any]]:
    """The tags as EC2's creating calls take them; EC2 lets only AWS itself write aws:."""
    tags = [t for t in ctx.tag_list(properties.get("Tags")) if not t["Key"].startswith("aws:")]
    marks = [{"Key": "aws:cloudformation:stack-name", "Value": ctx.stack_name}]
    return [{"ResourceType": kind, "Tags": tags + marks}]


def retag(ctx: Context, physical_id: str, old: Properties, new: Properties) -> None:
    """Brings the tags of a thing of EC2 from old to new."""
    before = {t["Key"]: t["Value"] for t in old.get("Tags", ())}
    after = {t["Key"]: t["Value"] for t in new.get("Tags", ())}
    ec2 = ctx.client("ec2")
    gone = [{"Key": key} for key in before.keys() - after.keys()]
    if gone:
        ec2.delete_tags(Resources=[physical_id], Tags=gone)
    if after != before:
        ec2.create_tags(Resources=[physical_id], Tags=[{"Key": k, "Value": v} for k, v in after.items()])


def flag(value: object) -> bool:
    """CloudFormation takes true and "true"."""
    return str(value).lower() == "true"


class Tagged(ResourceModel):
    """What can be changed in tags only."""

    def update(self, ctx: Context) -> Attributes:
        """Changes the tags."""
        retag(ctx, ctx.physical_id, ctx.old, ctx.properties)
        return super().update(ctx)


class Vpc(ResourceModel):
    """A VPC."""

    type = "AWS::EC2::VPC"

    def create(self, ctx: Context) -> Made:
        """Makes the VPC."""
        ec2 = ctx.client("ec2")
        vpc = ec2.create_vpc(
            CidrBlock=ctx.properties["CidrBlock"],
            InstanceTenancy=ctx.properties.get("InstanceTenancy", "default"),
            TagSpecifications=tag_specs(ctx, "vpc", ctx.properties),
        )["Vpc"]
        vpc_id = vpc["VpcId"]
        mine = [{"Name": "vpc-id", "Values": [vpc_id]}]
        groups = ec2.describe_security_groups(Filters=[*mine, {"Name": "group-name", "Values": ["default"]}])
        acls = ec2.describe_network_acls(Filters=mine)["NetworkAcls"]
        made = Made(
            vpc_id,
            {
                "VpcId": vpc_id,
                "CidrBlock": vpc["CidrBlock"],
                "CidrBlockAssociations": [a["AssociationId"] for a in vpc.get("CidrBlockAssociationSet", [])],
                "DefaultSecurityGroup": groups["SecurityGroups"][0]["GroupId"],
                "DefaultNetworkAcl": acls[0]["NetworkAclId"] if acls else "",
            },
        )
        ctx.claim(made)
        self._dns(ctx, vpc_id, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes DNS settings and tags."""
        self._dns(ctx, ctx.physical_id, ctx.properties)
        retag(ctx, ctx.physical_id, ctx.old, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the VPC, which EC2 refuses while anything is in it."""
        with absent_is_fine():
            ctx.client("ec2").delete_vpc(VpcId=ctx.physical_id)

    @staticmethod
    def _dns(ctx: Context, vpc_id: str, p: Properties) -> None:
        ec2 = ctx.client("ec2")
        support, names = flag(p.get("EnableDnsSupport", True)), flag(p.get("EnableDnsHostnames", False))
        ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsSupport={"Value": support})
        ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsHostnames={"Value": names})


class Subnet(ResourceModel):
    """A subnet."""

    type = "AWS::EC2::Subnet"

    def create(self, ctx: Context) -> Made:
        """Makes the subnet."""
        ec2 = ctx.client("ec2")
        zone = (
            {"AvailabilityZone": ctx.properties["AvailabilityZone"]}
            if "AvailabilityZone" in ctx.properties
            else {}
        )
        subnet = ec2.create_subnet(
            VpcId=ctx.properties["VpcId"],
            CidrBlock=ctx.properties["CidrBlock"],
            TagSpecifications=tag_specs(ctx, "subnet", ctx.properties),
            **zone,
        )["Subnet"]
        subnet_id = subnet["SubnetId"]
        made = Made(
            subnet_id,
            {
                "SubnetId": subnet_id,
                "AvailabilityZone": subnet["AvailabilityZone"],
                "VpcId": subnet["VpcId"],
                "CidrBlock": subnet["CidrBlock"],
            },
        )
        ctx.claim(made)
        self._public(ctx, subnet_id, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes public addresses and tags."""
        self._public(ctx, ctx.physical_id, ctx.properties)
        retag(ctx, ctx.physical_id, ctx.old, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the subnet, which EC2 refuses while an interface is in it."""
        ec2 = ctx.client("ec2")
        delete_once_free(ctx, lambda: ec2.delete_subnet(SubnetId=ctx.physical_id))

    @staticmethod
    def _public(ctx: Context, subnet_id: str, p: Properties) -> None:
        value = flag(p.get("MapPublicIpOnLaunch", False))
        ctx.client("ec2").modify_subnet_attribute(SubnetId=subnet_id, MapPublicIpOnLaunch={"Value": value})


class RouteTable(Tagged):
    """A route table."""

    type = "AWS::EC2::RouteTable"

    def create(self, ctx: Context) -> Made:
        """Makes the table."""
        specs = tag_specs(ctx, "route-table", ctx.properties)
        table = ctx.client("ec2").create_route_table(VpcId=ctx.properties["VpcId"], TagSpecifications=specs)
        table_id = table["RouteTable"]["RouteTableId"]
        return Made(table_id, {"RouteTableId": table_id})

    def delete(self, ctx: Context) -> None:
        """Removes the table."""
        with absent_is_fine():
            ctx.client("ec2").delete_route_table(RouteTableId=ctx.physical_id)


class SubnetRouteTableAssociation(ResourceModel):
    """A subnet's route table."""

    type = "AWS::EC2::SubnetRouteTableAssociation"

    def create(self, ctx: Context) -> Made:
        """Associates them."""
        found = ctx.client("ec2").associate_route_table(
            RouteTableId=ctx.properties["RouteTableId"], SubnetId=ctx.properties["SubnetId"]
        )["AssociationId"]
        return Made(found, {"Id": found})

    def delete(self, ctx: Context) -> None:
        """Takes the subnet from the table."""
        with absent_is_fine():
            ctx.client("ec2").disassociate_route_table(AssociationId=ctx.physical_id)


class Route(ResourceModel):
    """A route."""

    type = "AWS::EC2::Route"
    _TARGETS = ("GatewayId", "NatGatewayId", "TransitGatewayId", "VpcPeeringConnectionId", "NetworkInterfaceId")

    def create(self, ctx: Context) -> Made:
        """Adds the route."""
        ctx.client("ec2").create_route(**self._arguments(ctx.properties))
        destination = ctx.properties.get("DestinationCidrBlock", "")
        return Made(f"{ctx.properties['RouteTableId']}|{destination}", {"CidrBlock": destination})

    def update(self, ctx: Context) -> Attributes:
        """Points the route elsewhere."""
        ctx.client("ec2").replace_route(**self._arguments(ctx.properties))
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the route."""
        with absent_is_fine("InvalidRoute.NotFound"):
            ctx.client("ec2").delete_route(
                RouteTableId=ctx.properties["RouteTableId"],
                DestinationCidrBlock=ctx.properties["DestinationCidrBlock"],
            )

    def _arguments(self, p: Properties) -> dict[str, Any]:
        kept = ("RouteTableId", "DestinationCidrBlock", *self._TARGETS)
        return {key: p[key] for key in kept if key in p}


class InternetGateway(Tagged):
    """An internet gateway."""

    type = "AWS::EC2::InternetGateway"

    def create(self, ctx: Context) -> Made:
        """Makes the gateway."""
        specs = tag_specs(ctx, "internet-gateway", ctx.properties)
        gateway = ctx.client("ec2").create_internet_gateway(TagSpecifications=specs)["InternetGateway"]
        return Made(gateway["InternetGatewayId"], {"InternetGatewayId": gateway["InternetGatewayId"]})

    def delete(self, ctx: Context) -> None:
        """Removes the gateway."""
        with absent_is_fine():
            ctx.client("ec2").delete_internet_gateway(InternetGatewayId=ctx.physical_id)


class VpcGatewayAttachment(ResourceModel):
    """A VPC's internet gateway."""

    type = "AWS::EC2::VPCGatewayAttachment"

    def create(self, ctx: Context) -> Made:
        """Attaches it."""
        ctx.client("ec2").attach_internet_gateway(
            InternetGatewayId=ctx.properties["InternetGatewayId"], VpcId=ctx.properties["VpcId"]
        )
        return Made(f"IGW|{ctx.properties['VpcId']}", {"AttachmentType": "IGW"})

    def delete(self, ctx: Context) -> None:
        """Detaches it, which EC2 refuses while the VPC has public addresses."""
        with absent_is_fine("Gateway.NotAttached"):
            ctx.client("ec2").detach_internet_gateway(
                InternetGatewayId=ctx.properties["InternetGatewayId"], VpcId=ctx.properties["VpcId"]
            )


class Eip(Tagged):
    """A public address."""

    type = "AWS::EC2::EIP"

    def create(self, ctx: Context) -> Made:
        """Allocates the address."""
        specs = tag_specs(ctx, "elastic-ip", ctx.properties)
        found = ctx.client("ec2").allocate_address(Domain="vpc", TagSpecifications=specs)
        return Made(found["PublicIp"], {"AllocationId": found["AllocationId"], "PublicIp": found["PublicIp"]})

    def update(self, ctx: Context) -> Attributes:
        """Changes the tags."""
        retag(ctx, self._allocation(ctx, ctx.physical_id), ctx.old, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Releases the address, which EC2 refuses while it is in use."""
        with absent_is_fine():
            ctx.client("ec2").release_address(AllocationId=self._allocation(ctx, ctx.physical_id))

    @staticmethod
    def _allocation(ctx: Context, address: str) -> str:
        found = ctx.client("ec2").describe_addresses(PublicIps=[address])["Addresses"]
        return str(found[0]["AllocationId"])


class NatGateway(Tagged):
    """A NAT gateway."""

    type = "AWS::EC2::NatGateway"

    def create(self, ctx: Context) -> Made:
        """Makes the gateway and waits for it."""
        ec2 = ctx.client("ec2")
        address = {"AllocationId": ctx.properties["AllocationId"]} if "AllocationId" in ctx.properties else {}
        gateway_id = ec2.create_nat_gateway(
            SubnetId=ctx.properties["SubnetId"],
            ConnectivityType=ctx.properties.get("ConnectivityType", "public"),
            TagSpecifications=tag_specs(ctx, "natgateway", ctx.properties),
            **address,
        )["NatGateway"]["NatGatewayId"]
        made = Made(gateway_id, {"NatGatewayId": gateway_id})
        ctx.claim(made)
        ctx.wait(lambda: self._state(ctx, gateway_id) == "available", limit_s=900)
        return made

    def delete(self, ctx: Context) -> None:
        """Removes the gateway and waits until its address is free."""
        with absent_is_fine("NatGatewayNotFound"):
            ctx.client("ec2").delete_nat_gateway(NatGatewayId=ctx.physical_id)
        ctx.wait(lambda: self._state(ctx, ctx.physical_id) == "deleted", limit_s=1800)

    @staticmethod
    def _state(ctx: Context, gateway_id: str) -> str:
        found = ctx.client("ec2").describe_nat_gateways(NatGatewayIds=[gateway_id])["NatGateways"]
        return str(found[0]["State"]) if found else "deleted"


class VpcEndpoint(ResourceModel):
    """An endpoint of a service in a VPC."""

    type = "AWS::EC2::VPCEndpoint"

    def create(self, ctx: Context) -> Made:
        """Makes the endpoint."""
        kept = ("RouteTableIds", "SubnetIds", "SecurityGroupIds")
        more = {key: list(ctx.properties[key]) for key in kept if key in ctx.properties}
        if "PolicyDocument" in ctx.properties:
            more["PolicyDocument"] = json.dumps(ctx.properties["PolicyDocument"])  # type: ignore[assignment]
        endpoint = ctx.client("ec2").create_vpc_endpoint(
            VpcId=ctx.properties["VpcId"],
            ServiceName=ctx.properties["ServiceName"],
            VpcEndpointType=ctx.properties.get("VpcEndpointType", "Gateway"),
            PrivateDnsEnabled=flag(ctx.properties.get("PrivateDnsEnabled", False)),
            TagSpecifications=tag_specs(ctx, "vpc-endpoint", ctx.properties),
            **more,
        )["VpcEndpoint"]
        return Made(
            endpoint["VpcEndpointId"],
            {
                "Id": endpoint["VpcEndpointId"],
                "NetworkInterfaceIds": endpoint.get("NetworkInterfaceIds", []),
                "DnsEntries": [],
            },
        )

    def update(self, ctx: Context) -> Attributes:
        """Changes tables, subnets, groups, policy and tags."""
        more: dict[str, Any] = {}
        for name in ("RouteTableIds", "SubnetIds", "SecurityGroupIds"):
            before, after = set(ctx.old.get(name, ())), set(ctx.properties.get(name, ()))
            if after - before:
                more[f"Add{name}"] = sorted(after - before)
            if before - after:
                more[f"Remove{name}"] = sorted(before - after)
        if ctx.properties.get("PolicyDocument") != ctx.old.get("PolicyDocument"):
            more["PolicyDocument"] = json.dumps(ctx.properties.get("PolicyDocument"))
        if more:
            ctx.client("ec2").modify_vpc_endpoint(VpcEndpointId=ctx.physical_id, **more)
        retag(ctx, ctx.physical_id, ctx.old, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the endpoint."""
        with absent_is_fine():
            ctx.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[ctx.physical_id])


class FlowLog(Tagged):
    """A log of a VPC's traffic."""

    type = "AWS::EC2::FlowLog"

    def create(self, ctx: Context) -> Made:
        """Starts the log."""
        kept = [
            "DeliverLogsPermissionArn",
            "LogGroupName",
            "LogDestinationType",
            "LogDestination",
            "LogFormat",
            "TrafficType",
        ]
        found = ctx.client("ec2").create_flow_logs(
            ResourceIds=[ctx.properties["ResourceId"]],
            ResourceType=ctx.properties["ResourceType"],
            TagSpecifications=tag_specs(ctx, "vpc-flow-log", ctx.properties),
            **{key: ctx.properties[key] for key in kept if key in ctx.properties},
        )
        if found.get("Unsuccessful"):
            raise ClientError({"Error": found["Unsuccessful"][0]["Error"]}, "CreateFlowLogs")
        return Made(found["FlowLogIds"][0], {"Id": found["FlowLogIds"][0]})

    def delete(self, ctx: Context) -> None:
        """Ends the log."""
        with absent_is_fine():
            ctx.client("ec2").delete_flow_logs(FlowLogIds=[ctx.physical_id])
