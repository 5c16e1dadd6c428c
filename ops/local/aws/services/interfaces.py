"""Network interfaces that services put into subnets, and what they hold back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moto.ec2.models import ec2_backends

from ops.local.aws.cloudformation.state import ACCOUNT
from ops.local.aws.settings import LIVE


def ec2(region: str) -> Any:
    """moto's EC2 of the region."""
    return ec2_backends[ACCOUNT][region]


def regions() -> list[str]:
    """The regions that anything was asked of."""
    return list(dict.keys(ec2_backends[ACCOUNT]))


def make(region: str, subnet_id: str, group_ids: Iterable[str], description: str) -> str:
    """An interface that a service owns: in use until the service removes it."""
    backend = ec2(region)
    interface = backend.create_network_interface(
        backend.get_subnet(subnet_id), "", group_ids=list(group_ids), description=description
    )
    interface.status, interface.requester_managed = "in-use", True
    return str(interface.id)


def remove(region: str, interface_ids: Iterable[str]) -> list[str]:
    """Takes the service's interfaces away; gives those that stay behind, by configuration."""
    backend, stuck = ec2(region), []
    for interface_id in interface_ids:
        interface = backend.enis.get(interface_id)
        if interface is None:
            continue
        if LIVE.strikes("stuck_interface", interface.description):
            interface.status, interface.requester_managed = "available", False
            stuck.append(interface_id)
            continue
        backend.enis.pop(interface_id, None)
    return stuck


def groups_of(interface: Any) -> set[str]:
    """The ids of an interface's security groups."""
    return {group.id for group in interface.group_set}


def in_subnet(region: str, subnet_id: str) -> list[Any]:
    """The interfaces in a subnet."""
    return [i for i in ec2(region).enis.values() if i.subnet.id == subnet_id]


def of_group(region: str, group_id: str) -> list[Any]:
    """The interfaces that carry a security group."""
    return [i for i in ec2(region).enis.values() if group_id in groups_of(i)]
