"""NAT gateways hold their interface and address until they are really gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from moto.ec2.models import ec2_backends

from ops.local.aws.cloudformation.state import ACCOUNT
from ops.local.aws.refusals import AwsError
from ops.local.aws.settings import LIVE

NAT_DELETION_S = 60


def delete_nat_gateway(self: Any, nat_gateway_id: str) -> Any:
    """Starts the deletion: the interface and the address stay in use until it ends."""
    gateway = self.nat_gateways.get(nat_gateway_id)
    if gateway is None:
        raise AwsError("NatGatewayNotFound", f"NatGateway {nat_gateway_id} was not found")
    if gateway.state not in ("deleting", "deleted"):
        gateway.state, gateway.gone_at_s = "deleting", time.time() + LIVE.real_s(NAT_DELETION_S)
    return gateway


def in_use(gateway: Any) -> Any:
    """Marks the gateway's interface as the gateway's own."""
    gateway._eni.status, gateway._eni.requester_managed = "in-use", True
    gateway._eni.description = f"Interface for NAT Gateway {gateway.id}"
    return gateway


def _due() -> Iterator[tuple[Any, Any]]:
    for region in list(dict.keys(ec2_backends[ACCOUNT])):
        backend: Any = ec2_backends[ACCOUNT][region]
        for gateway in list(backend.nat_gateways.values()):
            if gateway.state == "deleting" and time.time() >= gateway.gone_at_s:
                yield backend, gateway


def something_due() -> bool:
    """Whether a NAT gateway's deletion has ended."""
    return next(_due(), None) is not None


def settle_nat_gateways() -> None:
    """Ends deletions whose time has come."""
    for backend, gateway in _due():
        gateway.state = "deleted"
        for address in backend.addresses:
            if address.eni is gateway._eni:
                backend.disassociate_address(address=address.public_ip)
        backend.enis.pop(gateway._eni.id, None)
