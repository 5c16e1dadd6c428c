"""What a training pod asks for: accelerators from the instance table, memory from the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from environments.environment import Environment
from environments.instance_types import HUGE_PAGES_POD_MIB, InstanceType
from environments.rules.training import STATE_BYTES_PER_PARAM
from trainer.config import ModelConfig, TrainConfig

GIB = 1024**3
MIB = 1024**2

ARENA_SLACK = 1.05
"""Uneven shards, alignment, tensors that are replicated, and the file's own index."""
ARENA_FIXED_BYTES = 16 * MIB
SHM_PER_RANK_BYTES = 256 * MIB
"""NCCL's and torch's own segments."""
SHM_PER_WORKER_BYTES = 256 * MIB
"""Batches on their way from a loader worker."""
RANK_BYTES = 6 * GIB
"""Python, torch, a CUDA context, NCCL's and EFA's host buffers; 4 to 5 GiB are usual, 6 leave room."""
WRITER_BYTES = 1 * GIB
"""The process that writes checkpoints; it maps the arena and adds little."""
WORKER_BYTES = 1 * GIB
LAUNCHER_BYTES = 2 * GIB
NODE_RESERVED_FRACTION = 0.08
"""Kubelet's reservation, DaemonSets and the kernel; the rest of an instance's memory can be asked for."""
NODE_RESERVED_CPUS_FRACTION = 0.1


class DoesNotFitError(Exception):
    """The model does not fit into the pods of this instance type. The message says what to change."""


@dataclass(frozen=True)
class PodMemory:
    """Bytes of one training pod."""

    arena_bytes: int
    """All ranks' snapshots in /dev/shm."""
    shm_bytes: int
    """Size of the /dev/shm volume; its pages count towards the limit."""
    limit_bytes: int


def state_bytes_per_rank(model: ModelConfig, world_size: int) -> int:
    """Bytes of one rank's shard of parameters and optimizer state."""
    return -(-model.num_params * STATE_BYTES_PER_PARAM // world_size)


def pod_memory(training: TrainConfig, gpus: int, world_size: int) -> PodMemory:
    """Memory of a pod with `gpus` ranks out of `world_size`.

    arena = gpus · host_slots · (1.05 · 12 · params / world_size + 16 MiB)
    shm   = arena + gpus · (256 MiB + num_workers · 256 MiB), up to the next GiB
    limit = the larger of
            shm + gpus · (6 GiB + 1 GiB writer + num_workers · 1 GiB + one shard, for loading) + 2 GiB launcher
            arena / max_host_fraction, which the checkpoint store checks before the first step
    """
    workers = training.data.num_workers
    shard = state_bytes_per_rank(training.model, world_size)
    slot = int(ARENA_SLACK * shard) + ARENA_FIXED_BYTES
    arena = gpus * training.checkpoint.host_slots * slot
    shm = _up_to_gib(arena + gpus * (SHM_PER_RANK_BYTES + workers * SHM_PER_WORKER_BYTES))
    processes = gpus * (RANK_BYTES + WRITER_BYTES + workers * WORKER_BYTES + shard) + LAUNCHER_BYTES
    bound = int(arena / training.checkpoint.max_host_fraction)
    return PodMemory(arena, shm, _up_to_gib(max(shm + processes, bound)))


def allocatable_bytes(instance: InstanceType) -> int:
    """Memory that pods of one node can ask for: less the reservation and the huge pages."""
    return int(instance.memory_gib * GIB * (1 - NODE_RESERVED_FRACTION)) - HUGE_PAGES_POD_MIB * MIB


def fitting_pod_memory(environment: Environment) -> PodMemory:
    """The pod's memory. Raises DoesNotFitError if a node has less."""
    memory = pod_memory(environment.training, environment.instance.gpus, environment.world_size)
    available = allocatable_bytes(environment.instance)
    if memory.limit_bytes > available:
        raise DoesNotFitError(
            f"a training pod needs {memory.limit_bytes // GIB} GiB of host memory, of which "
            f"{memory.arena_bytes // GIB} GiB are snapshots, and a {environment.instance_type} offers pods "
            f"{available // GIB} GiB; use more nodes, a smaller model, checkpoint.host_slots: 1 or fewer loader "
            f"workers (data.num_workers)"
        )
    return memory


def training_resources(environment: Environment, memory: PodMemory) -> dict[str, Any]:
    """Requests and limits of the training container.

    Everything but CPU is a limit, for extended resources and huge pages cannot be requested otherwise
    (nvcf#1354), and requests default to limits. CPU is requested only: throttling a rank stalls them all.
    """
    instance = environment.instance
    limits: dict[str, Any] = {
        "nvidia.com/gpu": str(instance.gpus),
        "vpc.amazonaws.com/efa": str(instance.efa_interfaces),
        "hugepages-2Mi": f"{HUGE_PAGES_POD_MIB}Mi",
        "memory": f"{memory.limit_bytes // GIB}Gi",
    }
    cpus = int(instance.vcpus * (1 - NODE_RESERVED_CPUS_FRACTION))
    return {"limits": limits, "requests": {**limits, "cpu": str(cpus)}}


def _up_to_gib(size_bytes: int) -> int:
    return -(-size_bytes // GIB) * GIB
