"""Lambda: functions in a VPC hold interfaces about 18 minutes longer than they live; layers keep archives."""

from __future__ import annotations

import time
from typing import Any, cast

from moto.awslambda.models import LambdaBackend, lambda_backends

from ops.local.aws.cloudformation.state import ACCOUNT
from ops.local.aws.services import clock, interfaces
from ops.local.aws.services.mending import mend
from ops.local.aws.settings import LIVE

RELEASE_S = 1080


def _held(region: str) -> dict[str, float]:
    """Interfaces by the time at which Lambda lets them go, kept in moto's EC2."""
    return cast(dict[str, float], interfaces.ec2(region).__dict__.setdefault("lambda_interfaces", {}))


def _vpc_of(function: Any) -> dict[str, Any]:
    return cast(dict[str, Any], getattr(function, "vpc_config", None) or {})


def _make(region: str, function: Any) -> None:
    vpc = _vpc_of(function)
    function.interfaces = [
        interfaces.make(
            region,
            subnet,
            vpc.get("SecurityGroupIds") or vpc.get("security_group_ids") or [],
            f"AWS Lambda VPC ENI-{function.function_name}",
        )
        for subnet in vpc.get("SubnetIds") or vpc.get("subnet_ids") or []
    ]


def layer_content(region: str, arn: str) -> bytes:
    """The archive that a layer's version was published with."""
    name, _, version = arn.rpartition(":")
    backend: Any = lambda_backends[ACCOUNT][region]
    return cast(bytes, backend.get_layer_version(name, version).code_bytes)


def install() -> None:
    """Functions hold interfaces, and hold them long."""
    create, delete = LambdaBackend.create_function, LambdaBackend.delete_function

    def create_function(self: Any, spec: dict[str, Any]) -> Any:
        function = create(self, spec)
        _make(self.region_name, function)
        return function

    def delete_function(self: Any, function_name: str, qualifier: str | None = None) -> None:
        function: Any = self.get_function(function_name)
        delete(self, function_name, qualifier)
        for interface in getattr(function, "interfaces", []):
            _held(self.region_name)[interface] = time.time() + LIVE.real_s(RELEASE_S)

    mend(LambdaBackend, "create_function", create_function)
    mend(LambdaBackend, "delete_function", delete_function)
    clock.every_tick(_something_due, _release)


def _something_due() -> bool:
    return any(at_s <= time.time() for region in interfaces.regions() for at_s in _held(region).values())


def _release() -> None:
    for region in interfaces.regions():
        held = _held(region)
        due = [interface for interface, at_s in held.items() if at_s <= time.time()]
        interfaces.remove(region, due)
        for interface in due:
            del held[interface]
