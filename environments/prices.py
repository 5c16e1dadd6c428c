"""What an environment costs: an honest estimate from list prices, not a quote.

On-demand list prices of us-east-1 (Linux), in USD, as of 2026-11; other regions differ by up to a third, and your
contract may too. Taxes, data transfer, log and request charges are not in it. The AWS price list is the authority.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from environments.environment import Environment
from environments.rules.network import endpoint_services
from environments.sections import CapacityBlock, OnDemand

AS_OF = "2026-11"
HOURS_A_MONTH = 730
Phase = Literal["deployed", "nodes"]
"""deployed: from deploy to destroy. nodes: for each hour that the GPU nodes are up, or reserved."""

GPU_NODE_USD_H: dict[str, float | None] = {
    "p4d.24xlarge": 21.957642,
    "p4de.24xlarge": 27.44705,
    "p5.4xlarge": 6.88,
    "p5.48xlarge": 55.04,
    "p5e.48xlarge": None,  # no on-demand price is published: sold in Capacity Blocks
    "p5en.48xlarge": 63.296,
    "p6-b200.48xlarge": 113.9328,
    "p6-b300.48xlarge": 142.416,
    "g6e.48xlarge": 30.13118,
}
_XLARGE_USD_H = {
    "m6i": 0.192,
    "m7i": 0.2016,
    "m7a": 0.23184,
    "c6i": 0.17,
    "c7i": 0.1785,
    "r6i": 0.252,
    "r7i": 0.2646,
}
_XLARGES = {"large": 0.5, "xlarge": 1, "2xlarge": 2, "4xlarge": 4, "8xlarge": 8}
_CONTROL_PLANE_USD_H = 0.10
_NAT_USD_H = 0.045
_ENDPOINT_USD_H = 0.01
_LUSTRE_USD_GIB_MONTH = {125: 0.145, 250: 0.210, 500: 0.340, 1000: 0.600}
_METADATA_USD_IOPS_MONTH = 0.055
_KEY_USD_MONTH = 1.0
_DISK_USD_GIB_MONTH = 0.08
_SYSTEM_DISK_GIB = 100


@dataclass(frozen=True)
class PriceLine:
    """One thing that costs money."""

    what: str
    phase: Phase
    usd_per_hour: float | None
    """None: not known from here; `basis` says why."""
    basis: str

    @property
    def usd_per_month(self) -> float | None:
        """For 730 hours."""
        return None if self.usd_per_hour is None else self.usd_per_hour * HOURS_A_MONTH


def price(env: Environment) -> list[PriceLine]:
    """Every line of the estimate; those of one phase add up."""
    return [*_control_plane(env), *_network(env), _lustre(env), *_metadata(env), _gpu_nodes(env)]


def total(lines: list[PriceLine], phase: Phase) -> float:
    """USD an hour of a phase, of what is known."""
    return sum(line.usd_per_hour or 0.0 for line in lines if line.phase == phase)


def _control_plane(env: Environment) -> list[PriceLine]:
    count, kind = env.system_nodes.nodes, env.system_nodes.instance_type
    family, _, size = kind.partition(".")
    known = family in _XLARGE_USD_H and size in _XLARGES
    each = _XLARGE_USD_H[family] * _XLARGES[size] if known else None
    disk = _SYSTEM_DISK_GIB * _DISK_USD_GIB_MONTH / HOURS_A_MONTH
    return [
        PriceLine("EKS control plane", "deployed", _CONTROL_PLANE_USD_H, "standard support"),
        PriceLine("KMS key", "deployed", _KEY_USD_MONTH / HOURS_A_MONTH, "USD 1 a month"),
        PriceLine(
            f"{count} system nodes {kind}",
            "deployed",
            count * (each + disk) if each is not None else None,
            f"USD {each:.4f} an hour each, and {_SYSTEM_DISK_GIB} GiB gp3" if each else "not in our price table",
        ),
    ]


def _network(env: Environment) -> list[PriceLine]:
    if env.network.egress == "nat":
        return [PriceLine("NAT gateway", "deployed", _NAT_USD_H, "and USD 0.045 for each GB through it")]
    count = 2 * len(endpoint_services(env))
    return [
        PriceLine(
            f"{count} interface endpoints, two zones",
            "deployed",
            count * _ENDPOINT_USD_H,
            f"USD {_ENDPOINT_USD_H} an hour each, and USD 0.01 for each GB",
        )
    ]


def _lustre(env: Environment) -> PriceLine:
    section = env.file_system
    each = _LUSTRE_USD_GIB_MONTH[section.throughput_mbps_per_tib]
    return PriceLine(
        f"FSx for Lustre {section.size_gib} GiB at {section.throughput_mbps_per_tib} MB/s per TiB",
        "deployed",
        section.size_gib * each / HOURS_A_MONTH,
        f"USD {each:.3f} a GB-month",
    )


def _metadata(env: Environment) -> list[PriceLine]:
    iops = env.file_system.metadata_iops
    if iops == "automatic":
        return []
    usd = int(iops) * _METADATA_USD_IOPS_MONTH / HOURS_A_MONTH
    basis = f"USD {_METADATA_USD_IOPS_MONTH} for each a month, less what the size includes"
    return [PriceLine(f"{iops} metadata IOPS", "deployed", usd, basis)]


def _gpu_nodes(env: Environment) -> PriceLine:
    count = env.nodes + env.spares
    what = f"{count} {env.instance_type}"
    if isinstance(env.capacity, CapacityBlock):
        return PriceLine(f"{what} in a Capacity Block", "nodes", 0.0, "paid in full when the block was bought")
    each = GPU_NODE_USD_H[env.instance_type]
    if each is None:
        return PriceLine(what, "nodes", None, "AWS publishes no on-demand price for it")
    running = isinstance(env.capacity, OnDemand)
    basis = f"USD {each:.2f} an hour each{'' if running else ', whether they run or not: the reservation bills'}"
    return PriceLine(what, "nodes" if running else "deployed", count * each, basis)
