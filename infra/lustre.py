"""FSx for Lustre, its security group and its links to the archive."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_fsx as fsx
from constructs import Construct

from environments.environment import Environment
from environments.rules.storage import LUSTRE_PORTS
from environments.sections import Association
from environments.versions import LUSTRE
from infra.naming import bucket_name, pin


class LustreFileSystem(Construct):
    """PERSISTENT_2 in the GPU nodes' subnet, admitted by the lustre-clients group; always encrypted."""

    def __init__(
        self, scope: Construct, id: str, env: Environment, *, subnet_id: str, vpc_id: str, clients_group_id: str
    ) -> None:
        super().__init__(scope, id)
        self._env = env
        self.group = self._build_group(vpc_id)
        rules = self._build_rules(clients_group_id)
        self.file_system = self._build_file_system(subnet_id)
        # FSx checks the rules when it is created, and has lost the race by a second: fsx-csi#32.
        self.file_system.node.add_dependency(*rules)
        self._build_associations()

    def _build_group(self, vpc_id: str) -> ec2.CfnSecurityGroup:
        group = ec2.CfnSecurityGroup(
            self,
            "Group",
            group_description="Lustre file system: LNet between its servers and the lustre-clients group",
            vpc_id=vpc_id,
            # An egress rule that matches nothing: without one EC2 adds its own, open to all addresses.
            security_group_egress=[
                ec2.CfnSecurityGroup.EgressProperty(
                    ip_protocol="icmp", from_port=252, to_port=86, cidr_ip="255.255.255.255/32", description="None"
                )
            ],
        )
        pin(group, "LustreSecurityGroup")
        return group

    def _build_rules(self, clients: str) -> list[cdk.CfnResource]:
        """Servers and clients reach each other and themselves; with EFA by every protocol, as FSx demands."""
        ours = self.group.attr_group_id
        ports = [(-1, -1)] if self._env.file_system.efa else LUSTRE_PORTS
        pairs = {"Servers": (ours, ours), "ServersClients": (ours, clients)}
        pairs |= {"ClientsServers": (clients, ours), "Clients": (clients, clients)}
        return [
            rule
            for name, (group, peer) in pairs.items()
            for port in ports
            for rule in self._build_pair(name, group, peer, port)
        ]

    def _build_pair(self, name: str, group: str, peer: str, port: tuple[int, int]) -> list[cdk.CfnResource]:
        low, high = port
        protocol = "-1" if low == -1 else "tcp"
        suffix = "All" if low == -1 else str(low)
        shared: dict[str, Any] = {"group_id": group, "ip_protocol": protocol, "description": "Lustre"}
        if low != -1:
            shared |= {"from_port": low, "to_port": high}
        return [
            ec2.CfnSecurityGroupIngress(self, f"{name}In{suffix}", source_security_group_id=peer, **shared),
            ec2.CfnSecurityGroupEgress(self, f"{name}Out{suffix}", destination_security_group_id=peer, **shared),
        ]

    def _build_file_system(self, subnet_id: str) -> fsx.CfnFileSystem:
        section = self._env.file_system
        automatic = section.metadata_iops == "automatic"
        metadata = fsx.CfnFileSystem.MetadataConfigurationProperty(
            mode="AUTOMATIC" if automatic else "USER_PROVISIONED",
            iops=None if automatic else int(section.metadata_iops),
        )
        file_system = fsx.CfnFileSystem(
            self,
            "FileSystem",
            file_system_type="LUSTRE",
            file_system_type_version=LUSTRE,
            storage_type="SSD",
            storage_capacity=section.size_gib,
            subnet_ids=[subnet_id],
            security_group_ids=[self.group.attr_group_id],
            lustre_configuration=fsx.CfnFileSystem.LustreConfigurationProperty(
                deployment_type="PERSISTENT_2",
                per_unit_storage_throughput=section.throughput_mbps_per_tib,
                data_compression_type=section.compression,
                efa_enabled=section.efa or None,
                metadata_configuration=metadata,
            ),
            tags=[cdk.CfnTag(key="Name", value=self._env.name)],
        )
        file_system.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        file_system.cfn_options.update_replace_policy = cdk.CfnDeletionPolicy.RETAIN
        pin(file_system, "FileSystem")
        return file_system

    def _build_associations(self) -> None:
        """One after the other: FSx makes one association of a file system at a time."""
        previous: fsx.CfnDataRepositoryAssociation | None = None
        for section in self._env.file_system.associations:
            association = self._build_association(section)
            if previous is not None:
                association.add_resource_dependency(previous)
            previous = association

    def _build_association(self, section: Association) -> fsx.CfnDataRepositoryAssociation:
        archive = self._env.archive.prefix
        prefix = section.prefix if section.bucket else "/".join(filter(None, (archive, section.prefix)))
        policies = fsx.CfnDataRepositoryAssociation
        association = fsx.CfnDataRepositoryAssociation(
            self,
            f"Association{section.path.replace('/', '-')}",
            file_system_id=self.file_system.ref,
            file_system_path=section.path,
            data_repository_path=f"s3://{section.bucket or bucket_name(self._env)}/" + (prefix and f"{prefix}/"),
            batch_import_meta_data_on_create=True,
            s3=policies.S3Property(
                auto_import_policy=policies.AutoImportPolicyProperty(events=list(section.imports))
                if section.imports
                else None,
                auto_export_policy=policies.AutoExportPolicyProperty(events=list(section.exports))
                if section.exports
                else None,
            ),
        )
        association.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        return association
