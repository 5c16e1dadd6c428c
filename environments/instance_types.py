"""The one table of instance types. Network cards, pod resources, sizes and bars all come from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

InterfaceType = Literal["interface", "efa", "efa-only"]


@dataclass(frozen=True)
class Interface:
    """One network interface of a launch template."""

    card: int
    device: int
    type: InterfaceType


@dataclass(frozen=True)
class InstanceType:
    """What the rest of the project has to know about an EC2 instance type."""

    name: str
    gpus: int
    gpu_memory_gib: int
    peak_tflops_per_gpu: float
    vcpus: int
    memory_gib: int
    nvme_gb: int
    network_cards: int
    efa_on_card_0: bool
    usd_per_hour: float
    """On-demand list price, us-east-1, Linux; an order of magnitude for `price`, not a quote."""

    @property
    def efa_interfaces(self) -> int:
        """EFA devices: one a card, card 0 only if it can."""
        return self.network_cards if self.efa_on_card_0 else self.network_cards - 1

    def interfaces(self) -> tuple[Interface, ...]:
        """The layout AWS recommends: card 0 device 0 carries IP, every other EFA is `efa-only`."""
        first = [Interface(0, 0, "interface")]
        if self.efa_on_card_0:
            first.append(Interface(0, 1, "efa-only"))
        return (*first, *(Interface(card, 0, "efa-only") for card in range(1, self.network_cards)))


_TABLE = (
    InstanceType("p5.4xlarge", 1, 80, 989.0, 16, 256, 3_840, 1, True, 6.88),
    InstanceType("p5.48xlarge", 8, 80, 989.0, 192, 2048, 30_720, 32, True, 55.04),
)
INSTANCE_TYPES: dict[str, InstanceType] = {entry.name: entry for entry in _TABLE}
