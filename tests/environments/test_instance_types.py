"""The table against data that EC2 published and somebody else keeps: moto's copy of DescribeInstanceTypes."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from environments.instance_types import INSTANCE_TYPES, InstanceType, Layout

pytestmark = pytest.mark.unit

ROWS = sorted(INSTANCE_TYPES.values(), key=lambda row: row.name)
LAYOUTS: tuple[Layout, ...] = ("recommended", "classic")


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    """Read as a file: importing moto's EC2 takes longer than all these tests."""
    folder = Path(next(iter(find_spec("moto").submodule_search_locations or ())))  # type: ignore[union-attr]
    with gzip.open(folder / "ec2" / "resources" / "instance_types.json.gz", "rt", encoding="utf-8") as file:
        data = json.load(file)
    return {row.name: data[row.name] for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_is_what_ec2_says(row: InstanceType, published: dict[str, Any]) -> None:
    entry = published[row.name]
    network, gpu = entry["NetworkInfo"], entry["GpuInfo"]["Gpus"][0]
    cards = network["NetworkCards"]
    assert row.gpus == gpu["Count"]
    assert row.gpu == gpu["Name"]
    assert row.gpu_memory_gib == gpu["MemoryInfo"]["SizeInMiB"] // 1024
    assert row.vcpus == entry["VCpuInfo"]["DefaultVCpus"]
    assert row.memory_gib == entry["MemoryInfo"]["SizeInMiB"] // 1024
    assert row.nvme_gb == entry["InstanceStorageInfo"]["TotalSizeInGB"]
    assert row.network_cards == len(cards)
    assert row.efa_on_card_0 == ("efa-only" in cards[0]["InterfaceTypes"])
    assert row.interfaces_on_card_0 == cards[0]["MaximumNetworkInterfaces"]
    assert row.addresses_per_interface == network["Ipv4AddressesPerInterface"]
    assert row.capacity_blocks == ("capacity-block" in entry["SupportedUsageClasses"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_layout_is_one_that_ec2_takes(row: InstanceType, layout: Layout, published: dict[str, Any]) -> None:
    """Report: eksctl#7520, terraform-aws-eks#2182: device indexes that count up are refused."""
    network = published[row.name]["NetworkInfo"]
    interfaces = row.interfaces(layout)
    places = [(interface.card, interface.device) for interface in interfaces]
    assert len(set(places)) == len(places)
    assert sorted({card for card, _ in places}) == list(range(len(network["NetworkCards"])))
    assert {device for _, device in places} <= {0, 1}
    assert places[0] == (0, 0) and interfaces[0].type != "efa-only"
    efa = [interface for interface in interfaces if interface.type in ("efa", "efa-only")]
    assert len(efa) == row.efa_interfaces == network["EfaInfo"]["MaximumEfaInterfaces"]
    for interface in interfaces:
        card = network["NetworkCards"][interface.card]
        assert interface.type in card["InterfaceTypes"]
        on_card = [other for other in interfaces if other.card == interface.card]
        assert len(on_card) <= card["MaximumNetworkInterfaces"]
        assert sum(other.type != "interface" for other in on_card) <= 1


def test_p5_takes_one_address_and_33_interfaces() -> None:
    row = INSTANCE_TYPES["p5.48xlarge"]
    kinds = [interface.type for interface in row.interfaces()]
    assert (len(kinds), kinds.count("efa-only"), kinds.count("interface")) == (33, 32, 1)
    assert [i.type for i in row.interfaces("classic")] == ["efa"] + ["efa-only"] * 31


def test_max_pods_counts_what_the_cni_can_use() -> None:
    """Report: amazon-vpc-cni-k8s#3189: the AMI says 100 for p5, of which the CNI serves 51."""
    assert INSTANCE_TYPES["p5.48xlarge"].max_pods() == 51
    assert INSTANCE_TYPES["p5.48xlarge"].max_pods("classic") == 100
    assert INSTANCE_TYPES["p5en.48xlarge"].max_pods() == 149
    assert INSTANCE_TYPES["p6-b300.48xlarge"].max_pods() == 198
    assert INSTANCE_TYPES["p5.4xlarge"].max_pods() == 89
    assert INSTANCE_TYPES["p4d.24xlarge"].max_pods() == 250
