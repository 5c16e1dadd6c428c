"""GPU and system nodes, and how they are paid for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from environments.instance_types import INSTANCE_TYPES
from environments.problems import Problem

if TYPE_CHECKING:
    from environments.environment import Environment

PLANNED_STOP = timedelta(minutes=60)
"""Before a Capacity Block's end all ranks save and leave; EKS empties the group 40 minutes before it."""
_SHORTEST_USE = timedelta(minutes=60)
_LONGEST_BLOCK = timedelta(days=182)
_BLOCK_INSTANCES = 64
_GROUP_NODES = 450
_ACCELERATED = re.compile(r"^(p|g|gr|trn|inf|dl|vt|f)\d")
_ARM = re.compile(r"^[a-z]+\d+g")


def block_has_time_to_train(env: Environment) -> Iterator[Problem]:
    """Nothing runs in the last hour of a block."""
    block = env.capacity_block
    if block is None:
        return
    least = PLANNED_STOP + _SHORTEST_USE
    if block.end - block.start < least:
        yield Problem(
            "capacity.end",
            f"{block.end:%Y-%m-%d %H:%M %Z} leaves no time after {block.start:%Y-%m-%d %H:%M %Z}: "
            "runs stop 60 minutes before the end",
            f"at least {int(least.total_seconds() // 60)} minutes after capacity.start",
            "copy both times from the reservation, with their time zone",
            "EKS guide, capacity-blocks-mng",
        )
    elif block.end - block.start > _LONGEST_BLOCK:
        yield Problem(
            "capacity.end",
            f"is {(block.end - block.start).days} days after the start",
            f"{_LONGEST_BLOCK.days} days at most: no longer block is sold",
            "copy both times from the reservation",
            "EC2 guide, Capacity Blocks",
        )


def block_is_sold_for_type(env: Environment) -> Iterator[Problem]:
    """Not every family is sold in blocks."""
    if env.capacity_block and not env.instance.capacity_blocks:
        sold = ", ".join(sorted(name for name, row in INSTANCE_TYPES.items() if row.capacity_blocks))
        yield Problem(
            "capacity.kind",
            f"{env.instance_type} is not sold in Capacity Blocks",
            f"with capacity-block: {sold}",
            "use on-demand or odcr, or another instance type",
            "EC2 guide, Capacity Blocks",
        )


def block_holds_the_nodes(env: Environment) -> Iterator[Problem]:
    """A block has up to 64 instances."""
    total = env.nodes + env.spares
    if env.capacity_block and total > _BLOCK_INSTANCES:
        yield Problem(
            "nodes",
            f"{env.nodes} and {env.spares} under spares make {total}",
            f"{_BLOCK_INSTANCES} in one Capacity Block",
            "take fewer nodes, or an On-Demand Capacity Reservation",
            "EC2 guide, Capacity Blocks",
        )


def group_holds_the_nodes(env: Environment) -> Iterator[Problem]:
    """EKS bounds the size of a managed node group."""
    total = env.nodes + env.spares
    if total > _GROUP_NODES:
        yield Problem(
            "nodes",
            f"{env.nodes} and {env.spares} under spares make {total}",
            f"{_GROUP_NODES} in one managed node group",
            "take fewer nodes",
            "EKS service quotas",
        )


def system_nodes_have_no_gpu(env: Environment) -> Iterator[Problem]:
    """Device plugins on a node without the devices of our layout keep it from becoming ready."""
    name = env.system_nodes.instance_type
    if _ACCELERATED.match(name) or name in INSTANCE_TYPES:
        yield Problem(
            "system_nodes.instance_type",
            f"{name} has accelerators, and its node would run no training",
            "an x86 type without accelerators",
            "use m7i.xlarge, or another general one",
            "kubernetes-on-aws#8881",
        )


def system_nodes_are_x86(env: Environment) -> Iterator[Problem]:
    """The control pod runs the training image, which is built for x86."""
    name = env.system_nodes.instance_type
    if _ARM.match(name):
        yield Problem(
            "system_nodes.instance_type",
            f"{name} is an ARM type: the control pod's image and the node image are x86",
            "an x86 type",
            "use m7i.xlarge, or another general one",
            "EKS guide, AMI types",
        )
    if name.split(".")[-1] in {"nano", "micro", "small"}:
        yield Problem(
            "system_nodes.instance_type",
            f"{name} has too few pods and too little memory for the add-ons",
            "large or larger",
            "use m7i.xlarge, or another general one",
            "EKS guide, choosing an instance type",
        )


RULES = (
    block_has_time_to_train,
    block_is_sold_for_type,
    block_holds_the_nodes,
    group_holds_the_nodes,
    system_nodes_have_no_gpu,
    system_nodes_are_x86,
)
