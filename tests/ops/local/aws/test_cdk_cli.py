"""The real CDK command line against the emulated AWS, with the project's own stacks."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from environments.environment import find, load
from infra.app import build
from ops.local.aws.local_aws import LocalAws
from ops.local.aws.settings import Settings
from ops.local.aws.testing import World
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.testing import running_cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ENVIRONMENT = "two-node-p5"
OTHERS = ("local", "eight-node-p5")
STACKS = ("archive", "network", "storage", "cluster", "capacity")
LIMIT_S = 300


@dataclass
class Cli:
    """`cdk`, pointed at one emulated AWS."""

    world: World
    project: Path
    assemblies: Path

    def assembly(self, environment: str) -> Path:
        """The environment's stacks, synthesized once."""
        folder = self.assemblies / environment
        if not folder.exists():
            build(load(find(environment)), folder)
        return folder

    def __call__(
        self, verb: str, *arguments: str, environment: str = ENVIRONMENT
    ) -> subprocess.CompletedProcess[str]:
        """Runs one verb on an environment's assembly; gives its code and all that it printed."""
        return subprocess.run(
            [
                str(self.project / "node_modules/.bin/cdk"),
                verb,
                "--app",
                str(self.assembly(environment)),
                *arguments,
            ],
            cwd=self.assemblies,
            env={**os.environ, **self.world.aws.environ(), "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def deploy(self, *arguments: str, environment: str = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
        """Deploys without asking."""
        return self("deploy", *arguments, "--require-approval", "never", environment=environment)


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """The local Kubernetes behind the clusters."""
    with running_cluster(tmp_path_factory.mktemp("kubernetes"), nodes=[]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cdk(tmp_path_factory: pytest.TempPathFactory, kubernetes: LocalCluster, project_root: Path) -> Iterator[Cli]:
    """The command line with every example environment synthesized, in a bootstrapped account."""
    assemblies = tmp_path_factory.mktemp("assemblies")
    aws = LocalAws(tmp_path_factory.mktemp("aws"))
    aws.start(Settings(kubeconfig=kubernetes.kubeconfig))
    try:
        cli = Cli(World(aws), project_root, assemblies)
        result = cli("bootstrap")
        assert result.returncode == 0, result.stdout
        yield cli
    finally:
        aws.stop()


def core_api(kubernetes: LocalCluster) -> Any:
    """Kubernetes' core API."""
    return client.CoreV1Api(kubernetes.api_client())


def stack_states(world: World) -> dict[str, str]:
    found = world.client("cloudformation").describe_stacks()["Stacks"]
    return {s["StackName"].removeprefix(f"{ENVIRONMENT}-"): s["StackStatus"] for s in found}


def test_every_stack_is_deployed(cdk: Cli, kubernetes: LocalCluster, record_property: Any) -> None:
    began = time.monotonic()
    result = cdk.deploy("--all")
    record_property("deploy_s", round(time.monotonic() - began, 1))
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("✅") == len(STACKS)
    assert "CREATE_COMPLETE" in result.stdout  # obstacle 5: progress of single resources
    assert stack_states(cdk.world) == {"CDKToolkit": "CREATE_COMPLETE", **dict.fromkeys(STACKS, "CREATE_COMPLETE")}
    assert cdk.world.client("eks").describe_cluster(name=ENVIRONMENT)["cluster"]["status"] == "ACTIVE"
    assert cdk.world.outputs(f"{ENVIRONMENT}-storage")["FileSystemId"].startswith("fs-")
    volumes = core_api(kubernetes).list_persistent_volume().items
    handles = [v.spec.csi.volume_handle.split("/")[0] for v in volumes]
    assert cdk.world.outputs(f"{ENVIRONMENT}-storage")["FileSystemId"] in handles


def test_the_same_again_changes_nothing(cdk: Cli, record_property: Any) -> None:
    began = time.monotonic()
    result = cdk.deploy("--all")
    record_property("no_op_s", round(time.monotonic() - began, 1))
    assert result.returncode == 0, result.stdout
    assert result.stdout.count("(no changes)") == len(STACKS)


def test_diff_makes_a_change_set_and_takes_it_away(cdk: Cli) -> None:
    """Obstacle 9: a missing change set was answered with 500, and tried again for 47 s."""
    began = time.monotonic()
    result = cdk("diff", f"{ENVIRONMENT}-network")
    assert result.returncode == 0, result.stdout
    assert "There were no differences" in result.stdout
    assert time.monotonic() - began < 40
    stack = f"{ENVIRONMENT}-network"
    left = cdk.world.client("cloudformation").list_change_sets(StackName=stack)["Summaries"]
    assert all(summary["ExecutionStatus"] != "AVAILABLE" for summary in left)


def test_an_update_brings_nodes(cdk: Cli, kubernetes: LocalCluster) -> None:
    result = cdk.deploy(f"{ENVIRONMENT}-capacity", "--exclusively", "--parameters", "DesiredNodes=2")
    assert result.returncode == 0, result.stdout
    assert stack_states(cdk.world)["capacity"] == "UPDATE_COMPLETE"
    nodes = core_api(kubernetes).list_node().items
    gpus = [n for n in nodes if n.status.allocatable.get("nvidia.com/gpu") == "8"]
    assert len(gpus) == 2


def test_a_failed_update_ends_with_code_1_and_the_construct_that_failed(cdk: Cli) -> None:
    cdk.world.fail(kind="update_fails", match="AWS::EKS::Nodegroup", reason="Rate exceeded")
    result = cdk.deploy(f"{ENVIRONMENT}-capacity", "--exclusively", "--parameters", "DesiredNodes=1")
    cdk.world.fail()
    assert result.returncode == 1
    assert "Gpu/NodeGroup" in result.stdout
    assert "Rate exceeded" in result.stdout
    assert stack_states(cdk.world)["capacity"] == "UPDATE_ROLLBACK_COMPLETE"


def test_what_is_protected_is_not_destroyed(cdk: Cli) -> None:
    result = cdk("destroy", f"{ENVIRONMENT}-storage", "--exclusively", "--force")
    assert result.returncode == 1
    assert "TerminationProtection is enabled" in result.stdout
    assert stack_states(cdk.world)["storage"] == "CREATE_COMPLETE"


def world_of(cdk: Cli, environment: str) -> World:
    """The same AWS in the environment's region."""
    return World(LocalAws(cdk.world.aws.state_dir, load(find(environment)).region))


def unprotect(cdk: Cli, environment: str) -> None:
    for stack in ("storage", "cluster"):
        world_of(cdk, environment).client("cloudformation").update_termination_protection(
            StackName=f"{environment}-{stack}", EnableTerminationProtection=False
        )


def test_everything_is_destroyed_but_the_archive(cdk: Cli, kubernetes: LocalCluster, record_property: Any) -> None:
    unprotect(cdk, ENVIRONMENT)
    began = time.monotonic()
    result = cdk("destroy", "--all", "--force")
    record_property("destroy_s", round(time.monotonic() - began, 1))
    assert result.returncode == 0, result.stdout
    assert stack_states(cdk.world) == {"CDKToolkit": "CREATE_COMPLETE"}
    assert seen(cdk.world, kubernetes) == {"buckets": [f"{ENVIRONMENT}-archive-123456789012-us-east-1"]}


def seen(world: World, kubernetes: LocalCluster) -> dict[str, Any]:
    """Whatever of the environment is left in AWS and in Kubernetes."""
    ec2 = world.client("ec2")
    core = core_api(kubernetes)
    own = ("default", "kube-system", "kube-public", "kube-node-lease")
    found = {
        "interfaces": ec2.describe_network_interfaces()["NetworkInterfaces"],
        "vpcs": [v["VpcId"] for v in ec2.describe_vpcs()["Vpcs"] if not v["IsDefault"]],
        "clusters": world.client("eks").list_clusters()["clusters"],
        "file systems": world.client("fsx").describe_file_systems()["FileSystems"],
        "functions": world.client("lambda").list_functions()["Functions"],
        "nodes": [n.metadata.name for n in core.list_node().items],
        "namespaces": [n.metadata.name for n in core.list_namespace().items if n.metadata.name not in own],
        "buckets": [b["Name"] for b in world.client("s3").list_buckets()["Buckets"] if "archive" in b["Name"]],
    }
    return {kind: things for kind, things in found.items() if things}


def test_a_creation_that_fails_rolls_back_and_the_next_one_starts_afresh(cdk: Cli) -> None:
    """Obstacle 4: the CLI printed a green tick and nothing was there."""
    refused = cdk.deploy(f"{ENVIRONMENT}-archive")
    assert refused.returncode == 1
    assert "already exists" in refused.stdout
    assert stack_states(cdk.world)["archive"] == "ROLLBACK_COMPLETE"
    adopted = cdk.deploy(f"{ENVIRONMENT}-archive", "--import-existing-resources")
    assert adopted.returncode == 0, adopted.stdout
    assert stack_states(cdk.world)["archive"] == "CREATE_COMPLETE"


@pytest.mark.parametrize("environment", OTHERS)
def test_the_other_examples_live_and_end_as_well(cdk: Cli, kubernetes: LocalCluster, environment: str) -> None:
    result = cdk("bootstrap", environment=environment)
    assert result.returncode == 0, result.stdout
    result = cdk.deploy("--all", environment=environment)
    assert result.returncode == 0, result.stdout
    unprotect(cdk, environment)
    result = cdk("destroy", "--all", "--force", environment=environment)
    assert result.returncode == 0, result.stdout
    assert set(seen(world_of(cdk, environment), kubernetes)) == {"buckets"}
