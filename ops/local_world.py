"""An environment on this machine: Kubernetes, nodes, file system and input, brought up when they are not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments.environment import Environment
from environments.instance_types import HUGE_PAGES_POD_MIB
from k8s.names import POOL_GPU, POOL_LABEL, POOL_SYSTEM, ZONE_LABEL
from k8s.placement import GPU_TAINT
from ops import data
from ops.cluster import Cluster
from ops.errors import CloudError
from ops.follow import outcome_of
from ops.local.aws.local_aws import LocalAws
from ops.local.holders import Holders, Part
from ops.local.kubernetes.cluster import ClusterError, LocalCluster
from ops.local.kubernetes.nodes import NodeSpec
from ops.local.node.substitutions import Substitutions
from ops.local_use import in_use, keep_up
from ops.options import Call
from ops.runs import LocalRuns
from ops.synth import cluster_documents
from ops.world import World

PROJECT_ROOT = Path(__file__).parent.parent
NOT_ON_THIS_MACHINE = frozenset({"DaemonSet"})
"""Device plugins: local nodes advertise their devices themselves."""


def file_system(call: Call) -> Path:
    """The environment's shared file system."""
    return call.state / "fsx"


def runs_of(call: Call) -> LocalRuns:
    """Run directories, whether or not the cluster is up."""
    return LocalRuns(file_system(call) / "runs")


@contextmanager
def local_world(call: Call, *, keep: bool = False) -> Iterator[World]:
    """Bring up what is missing; it goes again with the last command that uses it.

    With `keep` it stays if all goes well. Raises CloudError when the local Kubernetes does not start.
    """
    with in_use(call) as holders:
        try:
            with holders.changing():
                world = _start(call, LocalCluster(call.state), holders)
            yield world
        except ClusterError as error:
            raise CloudError(str(error)) from None
        if keep:
            keep_up(call, Part.KUBERNETES)


def _keep_what_was_left_behind(holders: Holders, cluster: Cluster) -> None:
    """Runs whose follower was killed go on: whoever comes upon them must not end them with its own."""
    if not holders.others() and any(outcome_of(job) is None for job in cluster.jobs()):
        holders.keep(Part.KUBERNETES)


def running_world(call: Call) -> World | None:
    """The world of a local Kubernetes that is up; None when it is not."""
    local = LocalCluster(call.state)
    if not local.is_answering():
        return None
    cluster = Cluster.from_kubeconfig(local.kubeconfig, call.environment.namespace)
    return World(call, cluster, runs_of(call), local.substitutions())


def _start(call: Call, local: LocalCluster, holders: Holders) -> World:
    environment, root = call.environment, file_system(call)
    for folder in ("runs", "data"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    prepared = data.prepare(root / "data")
    if not prepared.reused:
        call.output.say(f"input: {prepared.train_tokens:,} tokens, {prepared.eval_tokens:,} held out")
    deployed = _is_deployed(call, holders)
    nodes = [] if deployed else _nodes(environment)
    with call.output.working("starting the local Kubernetes"):
        kubeconfig = local.start(nodes, environment.kubernetes_version, Substitutions(root, PROJECT_ROOT))
        cluster = Cluster.from_kubeconfig(kubeconfig, environment.namespace)
        if not deployed:
            wanted = cluster_documents(environment)
            cluster.apply(document for document in wanted if document["kind"] not in NOT_ON_THIS_MACHINE)
    _keep_what_was_left_behind(holders, cluster)
    return World(call, cluster, runs_of(call), local.substitutions())


def _is_deployed(call: Call, holders: Holders) -> bool:
    """Then its stacks made volumes, its node groups nodes. An AWS that somebody only asks has made nothing."""
    return LocalAws(call.state / "aws").is_running() and not holders.is_passing(Part.AWS)


def _nodes(environment: Environment) -> list[NodeSpec]:
    gpu = [gpu_node(environment, number) for number in range(environment.nodes + environment.spares)]
    return [*gpu, *(system_node(environment, number) for number in range(environment.system_nodes.nodes))]


def gpu_node(environment: Environment, number: int) -> NodeSpec:
    """A node of the GPU pool, with what the instance table says."""
    instance = environment.instance
    allocatable = {
        "cpu": str(instance.vcpus),
        "memory": f"{instance.memory_gib}Gi",
        "hugepages-2Mi": f"{HUGE_PAGES_POD_MIB}Mi",
        "nvidia.com/gpu": str(instance.gpus),
        "vpc.amazonaws.com/efa": str(instance.efa_interfaces),
    }
    labels = {POOL_LABEL: POOL_GPU, ZONE_LABEL: environment.availability_zone}
    return NodeSpec(f"{environment.name}-gpu-{number}", labels, (GPU_TAINT,), allocatable)


def system_node(environment: Environment, number: int) -> NodeSpec:
    """A node of the system pool."""
    labels = {POOL_LABEL: POOL_SYSTEM, ZONE_LABEL: environment.availability_zone}
    return NodeSpec(f"{environment.name}-system-{number}", labels, (), {"cpu": "4", "memory": "16Gi"})
