"""Addresses, the way out, and the Kubernetes endpoint."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING

from environments.problems import Problem
from environments.sections import FileSystem

if TYPE_CHECKING:
    from environments.environment import Environment

_AWS_TAKES = 5
_CONTROL_PLANE = 16
"""Addresses a subnet that EKS recommends to keep free for its control plane and its upgrades."""
_INTERFACE_ENDPOINTS = (
    "ecr.api", "ecr.dkr", "ec2", "eks", "eks-auth", "sts", "logs", "monitoring", "fsx", "autoscaling",
)  # fmt: skip
"""What nodes, add-ons and pods call; S3 has a gateway endpoint, which costs neither money nor addresses."""
_SYSTEM_NODE = 30
"""Two interfaces of a small instance, as the CNI keeps one in reserve."""
_VPC_PREFIXES = range(16, 27)
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
_REFUSED = (*_PRIVATE, "169.254.0.0/16")


def cidr_is_private(env: Environment) -> Iterator[Problem]:
    """A VPC of 16 to 26 bits, in private address space (loopback and link-local are not), written as a network."""
    try:
        network = ipaddress.ip_network(env.network.cidr)
    except ValueError as error:
        yield Problem(
            "network.cidr", str(error), "a network such as 10.0.0.0/16", "correct it", "VPC guide, VPC CIDR blocks"
        )
        return
    private = any(network.subnet_of(ipaddress.ip_network(block)) for block in _PRIVATE)  # type: ignore[arg-type]
    if not private or network.prefixlen not in _VPC_PREFIXES:
        yield Problem(
            "network.cidr",
            f"{network} is not private, or of the wrong size",
            f"in {', '.join(_PRIVATE)}, from /{_VPC_PREFIXES.start} to /{_VPC_PREFIXES.stop - 1}",
            "use 10.0.0.0/16, or a network that your company gave you",
            "VPC guide, VPC CIDR blocks",
        )


def subnet_holds_everything(env: Environment) -> Iterator[Problem]:
    """Nodes hold addresses for pods that are not there yet, and FSx one for each of its servers (fsx-csi#382)."""
    try:
        prefix = ipaddress.ip_network(env.network.cidr).prefixlen
    except ValueError:
        return
    room = 2 ** (30 - prefix) - _AWS_TAKES
    need = addresses_needed(env)
    if prefix in _VPC_PREFIXES and need > room:
        smallest = 30 - (need + _AWS_TAKES - 1).bit_length()
        fits = smallest >= _VPC_PREFIXES.start
        widen = "widen it now: the network cannot be changed under an environment"
        yield Problem(
            "network.cidr",
            f"{env.network.cidr} gives {room} addresses to the GPU subnet, a quarter of the network; "
            f"{env.nodes + env.spares} GPU nodes, their pods and the file system take {need}",
            f"/{smallest} or larger" if fits else "a VPC has at most 65536 addresses",
            widen if fits else "take fewer nodes, or a smaller file system",
            "fsx-csi#433",
        )


def endpoint_services(env: Environment) -> list[str]:
    """AWS services that an environment without NAT reaches by interface endpoints."""
    secrets = ["secretsmanager"] if env.secrets else []
    provider_in_vpc = env.plugins == "by-stack" and env.endpoint != "public"
    return [*_INTERFACE_ENDPOINTS, *secrets, *(["lambda"] if provider_in_vpc else [])]


def addresses_needed(env: Environment) -> int:
    """Addresses of the GPU subnet that nodes, pods, file system and endpoints take.

    An `efa-only` interface takes none. The CNI fills one interface a node and keeps a second in reserve where
    card 0 has room for it.
    """
    instance = env.instance
    taken = sum(1 for interface in instance.interfaces(env.interfaces) if interface.card == 0)
    filled = min(2, 1 + instance.interfaces_on_card_0 - taken)
    gpu_nodes = (env.nodes + env.spares) * filled * instance.addresses_per_interface
    system_nodes = (env.system_nodes.nodes + 1) * _SYSTEM_NODE
    endpoints = len(endpoint_services(env)) if env.network.egress == "endpoints" else 1
    return gpu_nodes + system_nodes + endpoints + _CONTROL_PLANE + lustre_servers(env.file_system)


def lustre_servers(section: FileSystem) -> int:
    """File servers with an address each: what one holds depends on throughput and EFA; one more for metadata."""
    gib = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}[section.throughput_mbps_per_tib] if section.efa else 2400
    return -(-section.size_gib // gib) + 1


def endpoint_cidrs_fit_endpoint(env: Environment) -> Iterator[Problem]:
    """An option without an effect is a mistake; so is an endpoint open to nobody."""
    if env.endpoint == "cidr" and not env.endpoint_cidrs:
        yield Problem(
            "endpoint_cidrs",
            "is empty, and endpoint is cidr: nobody could reach the Kubernetes API from outside",
            "public networks of yours",
            "list them, or use endpoint: private",
            "aws-cdk#27055",
        )
    if env.endpoint != "cidr" and env.endpoint_cidrs:
        yield Problem(
            "endpoint_cidrs",
            f"has no effect with endpoint {env.endpoint}",
            "only with endpoint: cidr",
            "set endpoint: cidr, or remove the list",
            "aws-cdk#27055",
        )


def endpoint_cidrs_are_public(env: Environment) -> Iterator[Problem]:
    """EKS refuses private ranges here, and the whole world is `endpoint: public`."""
    for number, cidr in enumerate(env.endpoint_cidrs):
        field = f"endpoint_cidrs.{number}"
        try:
            network = ipaddress.ip_network(cidr)
        except ValueError as error:
            yield Problem(field, str(error), "a network such as 198.51.100.0/24", "correct it", "aws-cdk#27055")
            continue
        if network.prefixlen == 0:
            yield Problem(
                field,
                f"{cidr} is every address",
                "public networks of yours",
                "use endpoint: public",
                "aws-cdk#27055",
            )
        elif any(network.subnet_of(ipaddress.ip_network(block)) for block in _REFUSED):  # type: ignore[arg-type]
            yield Problem(
                field,
                f"{cidr} is private: EKS takes only public addresses here, and the VPC reaches the API anyway",
                "public networks of yours",
                "remove it",
                "EKS guide, cluster endpoint access",
            )


def closed_network_has_its_own_images(env: Environment) -> Iterator[Problem]:
    """Without a way out nodes pull from our registry only, and only an account has one."""
    if env.network.egress != "endpoints":
        return
    if env.account is None:
        yield Problem(
            "account",
            "is missing, and network.egress is endpoints: every image then comes from the account's own registry",
            "twelve digits, in quotes",
            "add it",
            "aws-cdk#6642",
        )
    registry = f".dkr.ecr.{env.region}.amazonaws.com/"
    if env.image and registry not in env.image:
        yield Problem(
            "image",
            f"{env.image.split('@')[0]} is not in the region's own registry, and nodes reach no other",
            f"<account>{registry}…",
            "push it with `steadfast image push`",
            "aws-cdk#6642",
        )


RULES = (
    cidr_is_private,
    subnet_holds_everything,
    endpoint_cidrs_fit_endpoint,
    endpoint_cidrs_are_public,
    closed_network_has_its_own_images,
)
