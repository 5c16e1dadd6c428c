"""What EC2 says against a launch template's network interfaces; EKS finds out by a dry run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from environments.instance_types import INSTANCE_TYPES, InstanceType
from ops.local.aws.refusals import AwsError

Interface = dict[str, Any]
TYPES = ("interface", "efa", "efa-only")
EFA_TYPES = ("efa", "efa-only")


def check(template: dict[str, Any], instance_type: str) -> None:
    """Refuses the template as RunInstances would."""
    plan: list[Interface] = template.get("NetworkInterfaces") or []
    if not plan:
        return
    if template.get("SecurityGroupIds") or template.get("SecurityGroups"):
        raise AwsError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level security groups may not be specified on the same request",
        )
    _check_types(plan)
    _check_positions(plan)
    entry = INSTANCE_TYPES.get(instance_type)
    if entry is not None:
        _check_cards(plan, entry)


def _position(interface: Interface) -> tuple[int, int]:
    return int(interface.get("NetworkCardIndex") or 0), int(interface.get("DeviceIndex") or 0)


def _check_types(plan: list[Interface]) -> None:
    for interface in plan:
        kind = interface.get("InterfaceType", "interface")
        if kind not in TYPES:
            raise AwsError("InvalidParameterValue", f"Invalid value '{kind}' for InterfaceType.")
        if kind == "efa-only" and _position(interface) == (0, 0):
            raise AwsError(
                "InvalidParameterCombination",
                "An EFA-only network interface can't be the primary network interface.",
            )


def _check_positions(plan: list[Interface]) -> None:
    positions = Counter(_position(interface) for interface in plan)
    if (0, 0) not in positions:
        raise AwsError(
            "InvalidParameterCombination",
            "When specifying network interfaces, you must include a device at index 0.",
        )
    for (card, device), count in positions.items():
        if count > 1:
            raise AwsError(
                "InvalidParameterValue",
                f"Each network interface requires a unique device index: {device} on network card {card} is "
                "taken.",
            )


def _check_cards(plan: list[Interface], entry: InstanceType) -> None:
    efa = Counter(_position(i)[0] for i in plan if i.get("InterfaceType") in EFA_TYPES)
    for card, device in map(_position, plan):
        most = entry.interfaces_on_card_0 if card == 0 else 2
        if card >= entry.network_cards:
            raise AwsError(
                "InvalidParameterValue",
                f"The specified network card index '{card}' is not supported by {entry.name}, which has "
                f"{entry.network_cards} network cards.",
            )
        if device >= most:
            # aws-k8s-tester#526
            raise AwsError(
                "InvalidParameterValue",
                f"The specified number '{device}' for the device index exceeds the maximum number of network "
                f"interfaces supported by the network card at network card index {card}. The maximum devices for "
                f"this network card is {most}. Specify a number from 0 to {most - 1}, and try again.",
            )
    crowded = [card for card, count in efa.items() if count > 1 or (card == 0 and not entry.efa_on_card_0)]
    if crowded:
        raise AwsError(
            "InvalidParameterCombination",
            f"EFA interfaces exceed what network card {crowded[0]} of {entry.name} supports.",
        )
