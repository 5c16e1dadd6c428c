"""Whether the training fits the machines it is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from environments.instance_types import HUGE_PAGES_2MIB
from environments.problems import Problem

if TYPE_CHECKING:
    from environments.environment import Environment

STATE_BYTES_PER_PARAM = 12
"""fp32 parameter and AdamW's two moments: what a checkpoint holds."""
_DEVICE_BYTES_PER_PARAM = 16
"""And its gradient."""
_GIB = 1024**3
_DEVICE_FRACTION = 0.9


def batch_divides(env: Environment) -> Iterator[Problem]:
    """Every rank takes the same share of the global batch."""
    try:
        env.training.share(env.world_size)
    except ValueError as error:
        yield Problem(
            "training.data.global_batch_size",
            str(error).split(";")[0],
            f"a batch that {env.world_size} ranks share in whole micro batches",
            "change it, nodes, or training.loop.micro_batch_size",
            "verl#7401",
        )


def state_fits_the_gpus(env: Environment) -> Iterator[Problem]:
    """Sharded parameters, moments and gradients alone, before any activation."""
    gib = env.training.model.num_params * _DEVICE_BYTES_PER_PARAM / env.world_size / _GIB
    room = env.instance.gpu_memory_gib * _DEVICE_FRACTION
    if gib > room:
        yield Problem(
            "training.model",
            f"{env.training.model.num_params / 1e9:.1f} B parameters take {gib:.0f} GiB on each of "
            f"{env.world_size} GPUs before any activation",
            f"{room:.0f} GiB of an {env.instance.gpu}",
            "take more nodes, another instance type or a smaller model",
            "PyTorch FSDP memory",
        )


def snapshots_fit_the_hosts(env: Environment) -> Iterator[Problem]:
    """The arenas of a node's ranks, all slots, in the share of memory that they may take."""
    checkpoint = env.training.checkpoint
    state = env.training.model.num_params * STATE_BYTES_PER_PARAM / env.nodes / _GIB
    room = (env.instance.memory_gib - HUGE_PAGES_2MIB * 2 / 1024) * checkpoint.max_host_fraction
    if state * checkpoint.host_slots > room:
        yield Problem(
            "training.checkpoint.host_slots",
            f"{checkpoint.host_slots} snapshots of {state:.0f} GiB a node do not fit",
            f"{room:.0f} GiB: {checkpoint.max_host_fraction:.0%} of the memory of {env.instance_type}",
            "use host_slots: 1, raise max_host_fraction, or take more nodes",
            "nccl#525",
        )


def grace_covers_the_last_save(env: Environment) -> Iterator[Problem]:
    """A stop that is cut off before its save is written loses what it was for."""
    grace = env.training.recovery.termination_grace_s
    needed = last_save_s(env)
    if needed > grace:
        yield Problem(
            "training.recovery.termination_grace_s",
            f"{grace:.0f} is less than the {needed:.0f} s that {state_bytes(env) / 1e9:.0f} GB take at the file "
            f"system's {throughput_bytes_s(env) / 1e9:.1f} GB/s",
            f"{needed:.0f} or more",
            "raise it, or the file system's size or throughput",
            "trainer#2000",
        )


def state_bytes(env: Environment) -> int:
    """Bytes of one checkpoint."""
    return env.training.model.num_params * STATE_BYTES_PER_PARAM


def throughput_bytes_s(env: Environment) -> float:
    """Bytes per second that the file system is provisioned for."""
    section = env.file_system
    return section.size_gib / 1024 * section.throughput_mbps_per_tib * 1e6


def last_save_s(env: Environment) -> float:
    """Seconds to write one checkpoint at the provisioned throughput."""
    return state_bytes(env) / throughput_bytes_s(env)


RULES = (batch_divides, state_fits_the_gpus, snapshots_fit_the_hosts, grace_covers_the_last_save)
