"""The four things that differ on this machine, value by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.local.node.network import Loopback, Namespaces
from ops.local.node.substitutions import Substitutions, replace_names, rewrite_path
from ops.local.node.variables import expand

pytestmark = pytest.mark.unit

MOUNTS = {"/fsx": Path("/state/fsx"), "/fsx/deep": Path("/elsewhere"), "/dev/shm": Path("/dev/shm/x")}


@pytest.mark.parametrize(
    ("value", "there"),
    [
        ("/fsx", "/state/fsx"),
        ("/fsx/runs/a", "/state/fsx/runs/a"),
        ("/fsx/deep/a", "/elsewhere/a"),
        ("/fsx2/a", "/fsx2/a"),
        ("--dir=/fsx", "--dir=/fsx"),
        ("/dev/shm", "/dev/shm/x"),
        ("", ""),
    ],
)
def test_values_that_are_or_begin_with_a_mount_path(value: str, there: str) -> None:
    assert rewrite_path(value, MOUNTS) == there


ADDRESSES = {
    "run-control": "127.1.0.1",
    "run-control.training.svc": "127.1.0.1",
    "run-control.training.svc.cluster.local": "127.1.0.1",
    "run-0.run.training.svc.cluster.local": "127.2.0.1",
}


@pytest.mark.parametrize(
    ("value", "there"),
    [
        ("run-control.training.svc.cluster.local:29500", "127.1.0.1:29500"),
        ("--rdzv-endpoint=run-control.training.svc:29500", "--rdzv-endpoint=127.1.0.1:29500"),
        ("tcp://run-control:29500/x", "tcp://127.1.0.1:29500/x"),
        ("run-0.run.training.svc.cluster.local", "127.2.0.1"),
        ("run-control", "run-control"),
        ("my-run-control:1", "my-run-control:1"),
        (
            "run-control.training.svc.cluster.local.example.com",
            "run-control.training.svc.cluster.local.example.com",
        ),
    ],
)
def test_names_become_addresses_where_they_are_certainly_hosts(value: str, there: str) -> None:
    assert replace_names(value, ADDRESSES) == there


def test_only_the_images_python_is_replaced() -> None:
    substitutions = Substitutions(Path("/fsx"), Path("/project"), Path("/venv/bin/python"))
    assert substitutions.command(["python", "-m", "x"]) == ["/venv/bin/python", "-m", "x"]
    assert substitutions.command(["sh", "-c", "python"]) == ["sh", "-c", "python"]
    assert substitutions.command([]) == []


def test_all_four_are_recorded_and_survive_the_settings_file() -> None:
    substitutions = Substitutions(Path("/state/fsx"), Path("/project"), Path("/venv/bin/python"), "loopback")
    assert Substitutions.from_json(substitutions.to_json()) == substitutions
    assert set(substitutions.describe("loopback", "none")) == {"mounts", "service_names", "resources", "image"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$(A)/x", "1/x"),
        ("$$(A)", "$(A)"),
        ("$(B)", "$(B)"),
        ("$A ${A}", "$A ${A}"),
        ("$(A)$(A)", "11"),
        ("$$$(A)", "$1"),
    ],
)
def test_references_are_expanded_as_kubernetes_does(text: str, value: str) -> None:
    assert expand(text, {"A": "1"}) == value


@pytest.mark.parametrize("network", [Namespaces("a"), Loopback("a"), Loopback("b")])
def test_every_pod_has_an_address_of_its_own(network: Namespaces | Loopback) -> None:
    addresses = [network.pod_address(n) for n in range(2000)]
    assert len(set(addresses)) == len(addresses)
    assert not any(a.endswith((".0", ".255")) or a == "10.244.0.1" for a in addresses)
