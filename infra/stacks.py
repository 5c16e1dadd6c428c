"""The five stacks, by how long they live. They compose, tag and export; constructs do the work."""

from __future__ import annotations

import functools

import aws_cdk as cdk
import cdk8s
from constructs import Construct

from environments.environment import Environment
from infra.archive import Archive
from infra.cluster import Cluster
from infra.gpu_nodes import GpuNodes
from infra.lustre import LustreFileSystem
from infra.naming import bucket_name
from infra.network import Network
from k8s.cluster_charts import LustreVolume, cluster_charts


class EnvironmentStack(cdk.Stack):
    """A stack of one environment: named, tagged, and without look-ups."""

    def __init__(
        self, scope: Construct, kind: str, env: Environment, description: str, *, protected: bool = False
    ) -> None:
        # Before super().__init__, which may already ask for the zones.
        self._zones = [env.availability_zone, env.second_availability_zone]
        super().__init__(
            scope,
            f"{env.name}-{kind}",
            env=cdk.Environment(account=env.account, region=env.region),
            description=f"Steadfast environment {env.name}: {description}",
            termination_protection=protected,
            tags=env.all_tags,
            permissions_boundary=_boundary(env.permissions_boundary) if env.permissions_boundary else None,
        )

        # In the templates too: an account that looks at a resource sees whose it is, whoever deployed it.
        tags = cdk.Tags.of(self)
        for key, value in sorted(env.all_tags.items()):
            tags.add(key, value)

    @property
    def availability_zones(self) -> list[str]:
        """The environment's two zones; CDK would ask AWS for them."""
        return self._zones

    def output(self, name: str, value: str) -> None:
        """A value for outputs.json."""
        cdk.CfnOutput(self, name, value=value)


class ArchiveStack(EnvironmentStack):
    """Outlives the environment."""

    def __init__(self, scope: Construct, env: Environment) -> None:
        super().__init__(scope, "archive", env, "bucket and image registry, kept")
        archive = Archive(self, "Archive", env)
        self.output("ArchiveBucket", archive.bucket.bucket_name)
        self.output("RepositoryUri", archive.repository.repository_uri)


class NetworkStack(EnvironmentStack):
    """VPC and the security groups that more than one stack uses."""

    def __init__(self, scope: Construct, env: Environment) -> None:
        super().__init__(scope, "network", env, "VPC and security groups")
        self.network = Network(self, "Network", env)
        # Exported whether or not a stack imports them: an export in use can then never go or change.
        self.vpc_id = self.export_value(self.network.vpc.vpc_id)
        self.subnet_ids = [self.export_value(subnet.subnet_id) for subnet in self.network.private_subnets]
        self.efa_id = self.export_value(self.network.efa.security_group_id)
        self.lustre_clients_id = self.export_value(self.network.lustre_clients.security_group_id)


class StorageStack(EnvironmentStack):
    """The file system and its links to the archive."""

    def __init__(self, scope: Construct, env: Environment, network: NetworkStack, archive: ArchiveStack) -> None:
        super().__init__(scope, "storage", env, "FSx for Lustre", protected=True)
        lustre = LustreFileSystem(
            self,
            "Lustre",
            env,
            subnet_id=network.subnet_ids[0],
            vpc_id=network.vpc_id,
            clients_group_id=network.lustre_clients_id,
        )
        self.add_stack_dependency(network)
        self.add_stack_dependency(archive, "the associations name its bucket")
        file_system = lustre.file_system
        self.volume = LustreVolume(
            file_system_id=self.export_value(file_system.ref),
            dns_name=self.export_value(file_system.attr_dns_name),
            mount_name=self.export_value(file_system.attr_lustre_mount_name),
        )
        self.output("FileSystemId", file_system.ref)
        self.output("FileSystemDnsName", file_system.attr_dns_name)
        self.output("FileSystemMountName", file_system.attr_lustre_mount_name)
        self.output("Bucket", bucket_name(env))


class ClusterStack(EnvironmentStack):
    """EKS, its system nodes, add-ons, device plugins and volumes."""

    def __init__(self, scope: Construct, env: Environment, network: NetworkStack, storage: StorageStack) -> None:
        super().__init__(scope, "cluster", env, "EKS", protected=True)
        built = Cluster(
            self,
            "Eks",
            env,
            vpc=network.network.vpc,
            subnet_id=network.subnet_ids[0],
            lustre_clients_id=network.lustre_clients_id,
            file_system_id=storage.volume.file_system_id,
        )
        self.add_stack_dependency(storage)
        self.security_group_id = self.export_value(built.cluster.cluster_security_group_id)
        if env.plugins == "by-stack":
            app = cdk8s.App()
            built.add_charts(cluster_charts(app, env, storage.volume))
        self.output("ClusterName", env.name)
        self.output("ClusterEndpoint", built.cluster.cluster_endpoint)


class CapacityStack(EnvironmentStack):
    """GPU nodes alone, so that a failed request for capacity rolls nothing else back."""

    def __init__(self, scope: Construct, env: Environment, network: NetworkStack, cluster: ClusterStack) -> None:
        super().__init__(scope, "capacity", env, "GPU nodes")
        GpuNodes(
            self,
            "Gpu",
            env,
            subnet_id=network.subnet_ids[0],
            group_ids=[cluster.security_group_id, network.efa_id, network.lustre_clients_id],
        )
        self.add_stack_dependency(cluster)
        self.output("NodeGroupName", env.node_group)


@functools.cache
def _boundary(arn: str) -> cdk.PermissionsBoundary:
    return cdk.PermissionsBoundary.from_arn(arn)


def add_stacks(app: cdk.App, env: Environment) -> list[EnvironmentStack]:
    """All five, in the order of their deployment."""
    archive = ArchiveStack(app, env)
    network = NetworkStack(app, env)
    storage = StorageStack(app, env, network, archive)
    cluster = ClusterStack(app, env, network, storage)
    return [archive, network, storage, cluster, CapacityStack(app, env, network, cluster)]
