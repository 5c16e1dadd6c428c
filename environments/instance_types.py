"""The one table of instance types. Network cards, pod resources, sizes, prices and bars all come from here.

Cards, addresses and sizes are EC2's own (`DescribeInstanceTypes`); a test compares every row with an
independently published copy of that data. Prices are on-demand list prices: see environments/prices.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

InterfaceType = Literal["interface", "efa", "efa-only"]
Layout = Literal["recommended", "classic"]

HUGE_PAGES_2MIB = 5128
"""Reserved on every EFA node: what EFA's provider takes for 32 devices, and what the driver itself reserves."""
HUGE_PAGES_POD_MIB = 5120
"""What a training pod asks for of them; a pod that asks on a node without any stays Pending (awsome#1230)."""
RESERVED_PODS = 2
"""aws-node and kube-proxy run on the host's network and need no address of their own."""


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
    gpu: str
    gpus: int
    gpu_memory_gib: int
    peak_tflops_per_gpu: float
    """Dense bf16, from the GPU's data sheet."""
    vcpus: int
    memory_gib: int
    nvme_gb: int
    network_cards: int
    efa_on_card_0: bool
    interfaces_on_card_0: int
    """Network interfaces that card 0 takes."""
    addresses_per_interface: int
    """IPv4 addresses of one interface, its primary one included."""
    capacity_blocks: bool = True
    """Sold in Capacity Blocks."""
    bus_bandwidth_gb_s: Mapping[int, float] = field(default_factory=dict)
    """All-reduce bus bandwidth that two healthy nodes are published to reach: message bytes to GB/s."""

    @property
    def efa_interfaces(self) -> int:
        """EFA devices: one a card, card 0 only if it can."""
        return self.network_cards if self.efa_on_card_0 else self.network_cards - 1

    def interfaces(self, layout: Layout = "recommended") -> tuple[Interface, ...]:
        """The launch template's interfaces, the primary one first.

        recommended: card 0 device 0 carries IP and every EFA device is `efa-only`, so a node takes one address
        (EC2 guide, "EFA for accelerated instance types"). classic: the older published layout, card 0 `efa` and
        device 1 of the others. Device indexes never count up with the card: eksctl#7520.
        """
        others = range(1, self.network_cards)
        if layout == "classic":
            first = Interface(0, 0, "efa" if self.efa_on_card_0 else "interface")
            return (first, *(Interface(card, 1, "efa-only") for card in others))
        on_card_0 = [Interface(0, 0, "interface")]
        if self.efa_on_card_0:
            on_card_0.append(Interface(0, 1, "efa-only"))
        return (*on_card_0, *(Interface(card, 0, "efa-only") for card in others))

    def max_pods(self, layout: Layout = "recommended") -> int:
        """Pods that get an address: the CNI serves card 0 only, less what our interfaces occupy there.

        p5 with the recommended layout: 51, not the AMI's 100 (amazon-vpc-cni-k8s#3189). Kubernetes' own
        bounds are 110 pods below 30 vCPUs and 250 from there on.
        """
        taken = sum(1 for interface in self.interfaces(layout) if interface.card == 0)
        with_addresses = 1 + self.interfaces_on_card_0 - taken
        pods = with_addresses * (self.addresses_per_interface - 1) + RESERVED_PODS
        return min(pods, 110 if self.vcpus < 30 else 250)


_MB = 1_000_000
# Two p5.48xlarge, 64 MB to 16 GB, and p4d: awsome-distributed-training, nccl-tests README.
_P5_BUS = {
    64 * _MB: 209.0, 128 * _MB: 289.0, 256 * _MB: 343.0, 512 * _MB: 393.0, 1000 * _MB: 437.0,
    2000 * _MB: 444.0, 4000 * _MB: 466.0, 8000 * _MB: 479.0, 16000 * _MB: 487.0,
}  # fmt: skip
_P4D_BUS = {1000 * _MB: 77.4}

_TABLE = (
    #            name                gpu  gpus GiB  TFLOPS  vCPU   GiB  NVMe  cards EFA0 ENI0 IPv4
    InstanceType("p4d.24xlarge", "A100", 8, 40, 312.0, 96, 1152, 8_000, 4, True, 15, 50, True, _P4D_BUS),
    InstanceType("p4de.24xlarge", "A100", 8, 80, 312.0, 96, 1152, 8_000, 4, True, 15, 50),
    InstanceType("p5.4xlarge", "H100", 1, 80, 989.0, 16, 256, 3_800, 1, True, 4, 30),
    InstanceType("p5.48xlarge", "H100", 8, 80, 989.0, 192, 2048, 30_400, 32, True, 2, 50, True, _P5_BUS),
    InstanceType("p5e.48xlarge", "H200", 8, 141, 989.0, 192, 2048, 30_400, 32, True, 2, 50),
    InstanceType("p5en.48xlarge", "H200", 8, 141, 989.0, 192, 2048, 30_400, 16, True, 4, 50),
    InstanceType("p6-b200.48xlarge", "B200", 8, 179, 2250.0, 192, 2048, 30_400, 8, True, 4, 50),
    InstanceType("p6-b300.48xlarge", "B300", 8, 268, 2250.0, 192, 4096, 30_400, 17, False, 4, 50),
    InstanceType("g6e.48xlarge", "L40S", 8, 44, 362.0, 192, 1536, 7_600, 4, True, 10, 50, capacity_blocks=False),
)
INSTANCE_TYPES: dict[str, InstanceType] = {entry.name: entry for entry in _TABLE}
