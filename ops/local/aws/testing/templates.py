"""Pieces of templates that several tests deploy."""

from __future__ import annotations

from typing import Any

Resources = dict[str, Any]
NODE_POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


def resource(kind: str, **properties: Any) -> dict[str, Any]:
    """A resource of the type."""
    return {"Type": f"AWS::{kind}", "Properties": properties}


def ref(name: str) -> dict[str, str]:
    """A reference."""
    return {"Ref": name}


def att(name: str, attribute: str) -> dict[str, list[str]]:
    """A reference to an attribute."""
    return {"Fn::GetAtt": [name, attribute]}


def network() -> Resources:
    """A VPC with two private subnets behind a NAT gateway, and an endpoint for S3."""
    return {
        "Vpc": resource("EC2::VPC", CidrBlock="10.0.0.0/16", EnableDnsHostnames=True),
        "Gateway": resource("EC2::InternetGateway"),
        "Attachment": resource("EC2::VPCGatewayAttachment", VpcId=ref("Vpc"), InternetGatewayId=ref("Gateway")),
        "Public": resource(
            "EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1a"
        ),
        "PublicTable": resource("EC2::RouteTable", VpcId=ref("Vpc")),
        "PublicRoute": {
            **resource(
                "EC2::Route",
                RouteTableId=ref("PublicTable"),
                DestinationCidrBlock="0.0.0.0/0",
                GatewayId=ref("Gateway"),
            ),
            "DependsOn": "Attachment",
        },
        "PublicAssociation": resource(
            "EC2::SubnetRouteTableAssociation", RouteTableId=ref("PublicTable"), SubnetId=ref("Public")
        ),
        "Address": {**resource("EC2::EIP", Domain="vpc"), "DependsOn": "Attachment"},
        "Nat": {
            **resource("EC2::NatGateway", SubnetId=ref("Public"), AllocationId=att("Address", "AllocationId")),
            "DependsOn": ["PublicRoute", "PublicAssociation"],
        },
        "SubnetA": resource(
            "EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.0.16.0/20", AvailabilityZone="us-east-1a"
        ),
        "SubnetB": resource(
            "EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.0.32.0/20", AvailabilityZone="us-east-1b"
        ),
        "Table": resource("EC2::RouteTable", VpcId=ref("Vpc")),
        "Route": resource(
            "EC2::Route",
            RouteTableId=ref("Table"),
            DestinationCidrBlock="0.0.0.0/0",
            NatGatewayId=ref("Nat"),
        ),
        "Association": resource(
            "EC2::SubnetRouteTableAssociation", RouteTableId=ref("Table"), SubnetId=ref("SubnetA")
        ),
        "Endpoint": resource(
            "EC2::VPCEndpoint",
            VpcId=ref("Vpc"),
            ServiceName="com.amazonaws.us-east-1.s3",
            VpcEndpointType="Gateway",
            RouteTableIds=[ref("Table")],
        ),
        **_file_system_group(),
    }


def _file_system_group() -> Resources:
    """A security group that is open to itself."""
    return {
        "Group": resource("EC2::SecurityGroup", VpcId=ref("Vpc"), GroupDescription="of the file system"),
        "GroupIn": resource(
            "EC2::SecurityGroupIngress",
            GroupId=ref("Group"),
            IpProtocol="-1",
            SourceSecurityGroupId=ref("Group"),
        ),
        "GroupOut": resource(
            "EC2::SecurityGroupEgress",
            GroupId=ref("Group"),
            IpProtocol="-1",
            DestinationSecurityGroupId=ref("Group"),
        ),
    }


def file_system(**lustre: Any) -> dict[str, Any]:
    """A file system in the network's first subnet."""
    made = resource(
        "FSx::FileSystem",
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[ref("SubnetA")],
        SecurityGroupIds=[ref("Group")],
        LustreConfiguration={"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 250, **lustre},
    )
    return {**made, "DependsOn": ["GroupIn", "GroupOut"]}


def cluster(name: str = "test") -> Resources:
    """A cluster in the network's two subnets."""
    return {
        "ClusterRole": resource("IAM::Role", AssumeRolePolicyDocument=NODE_POLICY),
        "NodeRole": resource("IAM::Role", AssumeRolePolicyDocument=NODE_POLICY),
        "Cluster": resource(
            "EKS::Cluster",
            Name=name,
            RoleArn=att("ClusterRole", "Arn"),
            Version="1.35",
            AccessConfig={"AuthenticationMode": "API"},
            ResourcesVpcConfig={"SubnetIds": [ref("SubnetA"), ref("SubnetB")]},
        ),
    }


def node_group(desired: int = 0, **more: Any) -> dict[str, Any]:
    """A node group of the cluster."""
    properties = {
        "ClusterName": ref("Cluster"),
        "NodegroupName": "nodes",
        "NodeRole": att("NodeRole", "Arn"),
        "Subnets": [ref("SubnetA")],
        "ScalingConfig": {"MinSize": 0, "DesiredSize": desired, "MaxSize": 4},
        **more,
    }
    return {"Type": "AWS::EKS::Nodegroup", "Properties": properties}


def launch_template(instance_type: str = "p5.48xlarge", **data: Any) -> dict[str, Any]:
    """A launch template with every interface that the instance table names."""
    from environments.instance_types import INSTANCE_TYPES

    interfaces = [
        {
            "NetworkCardIndex": i.card,
            "DeviceIndex": i.device,
            "InterfaceType": i.type,
            "Groups": [ref("Group"), att("Cluster", "ClusterSecurityGroupId")],
            "DeleteOnTermination": True,
        }
        for i in INSTANCE_TYPES[instance_type].interfaces()
    ]
    return resource(
        "EC2::LaunchTemplate",
        LaunchTemplateData={"InstanceType": instance_type, "NetworkInterfaces": interfaces, **data},
    )
