"""Addresses for pods and Services: real network namespaces, or loopback addresses where those are not allowed.

Namespaces: one parent namespace per environment holds a bridge and routes; every pod has a namespace of its own
with `eth0` on that bridge. A ClusterIP is an address of its own: the pod behind the Service carries it and the
parent routes to it; with no pod behind it the parent carries it and refuses connections, as kube-proxy does.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Protocol

_NAMESPACES = Path("/run/netns")
GATEWAY = "10.244.0.1"
_BRIDGE_ADDRESS = "02:00:00:00:00:01"


class NetworkError(Exception):
    """A network command failed."""


class Network(Protocol):
    """What the kubelet needs of either mode."""

    @property
    def mode(self) -> str:
        """`namespaces` or `loopback`"""

    @property
    def service_range(self) -> str:
        """Addresses of Services."""

    def pod_address(self, number: int) -> str:
        """The address of the environment's n-th pod."""

    def attach(self, pod: str, address: str) -> None:
        """Makes the pod's network."""

    def detach(self, pod: str) -> None:
        """Takes it away."""

    def namespace(self, pod: str) -> str | None:
        """Path of the pod's network namespace."""

    def set_link(self, pod: str, *, up: bool) -> bool:
        """Cuts the pod off or connects it; False if this mode cannot."""

    def point_service(self, address: str, pod: str | None, pod_address: str | None) -> None:
        """Lets a Service's address lead to a pod, or to nobody."""

    def forget_service(self, address: str) -> None:
        """The Service is gone."""

    def remove_all(self) -> None:
        """Leaves nothing behind."""


def short_id(text: str) -> str:
    """Six characters that stand for an environment in names the kernel keeps short."""
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def namespaces_allowed() -> bool:
    """root and iproute2, and the kernel lets us."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"sf-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return made


def choose_network(environment: str, wanted: str | None) -> Network:
    """The wanted mode, else namespaces where allowed."""
    if wanted == "loopback" or (wanted is None and not namespaces_allowed()):
        return Loopback(environment)
    return Namespaces(environment)


class Namespaces:
    """One bridge, one namespace per pod."""

    mode = "namespaces"
    service_range = "10.96.0.0/16"

    def __init__(self, environment: str) -> None:
        self._parent = f"sf-{environment[-6:]}"
        self._carriers: dict[str, str | None] = {}
        """Service address → the pod that carries it, None: the parent."""

    def pod_address(self, number: int) -> str:
        """10.244.0.2 onwards."""
        return f"10.244.{(number + 2) // 250 % 256}.{(number + 2) % 250 + 1}"

    def _name(self, pod: str) -> str:
        return f"{self._parent}-{pod[:8]}"

    def _device(self, pod: str) -> str:
        return f"v{pod[:8]}"

    def _ensure_parent(self) -> None:
        if (_NAMESPACES / self._parent).exists():
            return
        _ip("netns", "add", self._parent)
        _batch(
            self._parent,
            "link set lo up",
            # A bridge otherwise takes the lowest address of its ports: it would change as pods come and go, and
            # the others would send to the gateway of before until their neighbour entries expire.
            f"link add br0 address {_BRIDGE_ADDRESS} type bridge",
            f"addr add {GATEWAY}/16 dev br0",
            "link set br0 up",
        )
        # Per-namespace settings: /proc/sys/net shows those of the process that opens it.
        settings = "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 0 > /proc/sys/net/ipv4/conf/all/send_redirects"
        settings += "; echo 0 > /proc/sys/net/ipv4/conf/br0/send_redirects"
        _ip("netns", "exec", self._parent, "sh", "-c", settings)

    def attach(self, pod: str, address: str) -> None:
        """A namespace with `eth0` on the bridge."""
        self._ensure_parent()
        name, device = self._name(pod), self._device(pod)
        if (_NAMESPACES / name).exists():
            return
        _ip("netns", "add", name)
        _batch(
            self._parent,
            f"link add {device} type veth peer name eth0 netns {name}",
            f"link set {device} master br0 up",
        )
        _batch(
            name,
            "link set lo up",
            f"addr add {address}/16 dev eth0",
            "link set eth0 up",
            f"route add default via {GATEWAY}",
        )

    def detach(self, pod: str) -> None:
        """The namespace goes with the last process in it; the name goes now."""
        for address, carrier in list(self._carriers.items()):
            if carrier == pod:
                self.point_service(address, None, None)
        if (_NAMESPACES / self._name(pod)).exists():
            _ip("-n", self._parent, "link", "del", self._device(pod), check=False)
            _ip("netns", "del", self._name(pod), check=False)

    def namespace(self, pod: str) -> str | None:
        """/run/netns/…"""
        return str(_NAMESPACES / self._name(pod))

    def set_link(self, pod: str, *, up: bool) -> bool:
        """Pulls the pod's cable, or plugs it in again."""
        _ip("-n", self._parent, "link", "set", self._device(pod), "up" if up else "down", check=False)
        return True

    def point_service(self, address: str, pod: str | None, pod_address: str | None) -> None:
        """Moves the Service's address to the pod that is behind it now."""
        if address in self._carriers and self._carriers[address] == pod:
            return
        self._ensure_parent()
        before = self._carriers.get(address)
        if before is not None and (_NAMESPACES / self._name(before)).exists():
            _ip("-n", self._name(before), "addr", "del", f"{address}/32", "dev", "lo", check=False)
        if pod is None:
            _ip("-n", self._parent, "route", "del", f"{address}/32", check=False)
            _ip("-n", self._parent, "addr", "replace", f"{address}/32", "dev", "lo")
        else:
            _ip("-n", self._name(pod), "addr", "replace", f"{address}/32", "dev", "lo")
            _ip("-n", self._parent, "addr", "del", f"{address}/32", "dev", "lo", check=False)
            _ip("-n", self._parent, "route", "replace", f"{address}/32", "via", str(pod_address))
        self._carriers[address] = pod

    def forget_service(self, address: str) -> None:
        """Nobody carries the address any more."""
        if address in self._carriers:
            self.point_service(address, None, None)
            _ip("-n", self._parent, "addr", "del", f"{address}/32", "dev", "lo", check=False)
            del self._carriers[address]

    def remove_all(self) -> None:
        """Deletes every namespace of the environment."""
        if not _NAMESPACES.exists():
            return
        for path in [*_NAMESPACES.glob(f"{self._parent}-*"), *_NAMESPACES.glob(self._parent)]:
            _ip("netns", "del", path.name, check=False)
        self._carriers.clear()


class Loopback:
    """127.x.y.z for every pod and Service: all in the machine's own network."""

    mode = "loopback"

    def __init__(self, environment: str) -> None:
        # Two environments side by side take different parts of 127.0.0.0/8.
        self._octet = 2 + 2 * (int(short_id(environment), 16) % 120)

    @property
    def service_range(self) -> str:
        """The odd half of the environment's part."""
        return f"127.{self._octet + 1}.0.0/16"

    def pod_address(self, number: int) -> str:
        """127.x.0.1 onwards."""
        return f"127.{self._octet}.{number // 250 % 256}.{number % 250 + 1}"

    def attach(self, pod: str, address: str) -> None:
        """Loopback addresses are always there."""

    def detach(self, pod: str) -> None:
        """Nothing to take away."""

    def namespace(self, pod: str) -> str | None:  # noqa: ARG002
        """None: the machine's own."""
        return None

    def set_link(self, pod: str, *, up: bool) -> bool:  # noqa: ARG002
        """There is no cable to pull."""
        return False

    def point_service(self, address: str, pod: str | None, pod_address: str | None) -> None:
        """A process that listens on all addresses is reached by the Service's address too."""

    def forget_service(self, address: str) -> None:
        """Nothing to take away."""

    def remove_all(self) -> None:
        """Nothing to take away."""


def _ip(*arguments: str, check: bool = True) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise NetworkError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _batch(namespace: str, *commands: str) -> None:
    command = ["ip", "-n", namespace, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(commands), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
