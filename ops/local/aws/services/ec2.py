"""EC2: what moto lets pass and AWS refuses, and the actions that moto lacks."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import Instance
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.responses import EC2Response

from ops.local.aws.refusals import AwsError
from ops.local.aws.services import clock, instances, interfaces, quotas, vpc_endpoints
from ops.local.aws.services.mending import Method, mend
from ops.local.aws.services.nat import delete_nat_gateway, in_use, settle_nat_gateways, something_due
from ops.local.aws.services.placement import PlacementActions
from ops.local.aws.services.reservations import ReservationActions

Arguments = Mapping[str, Any]


def _refuse(code: str, message: str) -> None:
    raise AwsError(code, message)


def _checked(name: str, check: Method) -> None:
    """Calls `check` with the method's arguments first; it raises what AWS refuses."""
    original: Method = getattr(EC2Backend, name)
    signature = inspect.signature(original)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(self, signature.bind_partial(self, *args, **kwargs).arguments)
        return original(self, *args, **kwargs)

    mend(EC2Backend, name, wrapped)


def _check_group(backend: Any, asked: Arguments) -> None:
    group_id = asked.get("group_id")
    if group_id is None:
        return
    if interfaces.of_group(backend.region_name, group_id) or _named_elsewhere(backend, group_id):
        _refuse("DependencyViolation", f"resource {group_id} has a dependent object")


def _named_elsewhere(backend: Any, group_id: str) -> bool:
    """Whether another group's rule names the group."""
    others = (g for groups in backend.groups.values() for g in groups.values() if g.id != group_id)
    return any(
        isinstance(rule.source_group, dict) and rule.source_group.get("GroupId") == group_id
        for group in others
        for rule in (*group.ingress_rules, *group.egress_rules)
    )


def _check_subnet(backend: Any, asked: Arguments) -> None:
    subnet_id = asked["subnet_id"]
    if interfaces.in_subnet(backend.region_name, subnet_id):
        _refuse("DependencyViolation", f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")


def _check_vpc(backend: Any, asked: Arguments) -> None:
    vpc_id = asked["vpc_id"]
    groups = [group for group in backend.groups.get(vpc_id, {}).values() if group.name != "default"]
    gateways = [g for g in backend.internet_gateways.values() if g.vpc and g.vpc.id == vpc_id]
    endpoints = [e for e in backend.vpc_end_points.values() if e.vpc_id == vpc_id]
    if groups or gateways or endpoints:
        _refuse("DependencyViolation", f"The vpc '{vpc_id}' has dependencies and cannot be deleted.")


def _check_detach(backend: Any, asked: Arguments) -> None:
    vpc_id = asked["vpc_id"]
    in_vpc = (i for i in backend.enis.values() if i.subnet.vpc_id == vpc_id)
    if any(interface.public_ip for interface in in_vpc):
        _refuse(
            "DependencyViolation",
            f"Network {vpc_id} has some mapped public address(es). Please unmap those public address(es) before "
            "detaching the gateway.",
        )


def _check_interface(backend: Any, asked: Arguments) -> None:
    eni_id = asked["eni_id"]
    interface = backend.enis.get(eni_id)
    if interface is not None and interface.status == "in-use":
        _refuse("InvalidParameterValue", f"Network interface '{eni_id}' is currently in use.")


def _check_new_vpc(backend: Any, asked: Arguments) -> None:
    if not asked.get("is_default") and len(backend.vpcs) >= quotas.limit("vpcs"):
        _refuse("VpcLimitExceeded", "The maximum number of VPCs has been reached.")


def _check_new_address(backend: Any, _: Arguments) -> None:
    if len(backend.addresses) >= quotas.limit("elastic_ips"):
        _refuse("AddressLimitExceeded", "The maximum number of addresses has been reached.")


def _check_release(backend: Any, asked: Arguments) -> None:
    found = next((a for a in backend.addresses if a.allocation_id == asked.get("allocation_id")), None)
    if found is not None and found.association_id:
        _refuse("InvalidIPAddress.InUse", f"Address {found.public_ip} is in use.")


CHECKS: dict[str, Method] = {
    "delete_security_group": _check_group,
    "delete_subnet": _check_subnet,
    "delete_vpc": _check_vpc,
    "detach_internet_gateway": _check_detach,
    "delete_network_interface": _check_interface,
    "create_vpc": _check_new_vpc,
    "allocate_address": _check_new_address,
    "release_address": _check_release,
}


def _terminate(self: Any, original: Method = Instance.terminate) -> Any:
    """A terminated instance leaves with every interface it had."""
    state = original(self)
    instances.release_interfaces(self.ec2_backend.region_name, self)
    return state


def _same_rule(self: Any, other: Any) -> bool:
    """Descriptions make no difference: moto neither finds nor changes a rule for a group if they differ."""
    return _essence(self) == _essence(other)


def _essence(rule: Any) -> tuple[object, ...]:
    addresses, peer, prefix = rule.ip_range or {}, rule.source_group or {}, rule.prefix_list_id or {}
    ports = () if str(rule.ip_protocol) == "-1" else (rule.from_port, rule.to_port)
    named = (addresses.get("CidrIp"), addresses.get("CidrIpv6"), peer.get("GroupId"), prefix.get("PrefixListId"))
    return (rule.ip_protocol, *ports, *named)


def _settled(original: Method) -> Method:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        settle_nat_gateways()
        return original(self, *args, **kwargs)

    return method


def _then(finish: Method, original: Method) -> Method:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return finish(original(self, *args, **kwargs))

    return method


def install() -> None:
    """Mends moto's EC2."""
    for name, check in CHECKS.items():
        _checked(name, check)
    mend(EC2Backend, "delete_nat_gateway", delete_nat_gateway)
    mend(EC2Backend, "describe_nat_gateways", _settled(EC2Backend.describe_nat_gateways))
    mend(EC2Backend, "create_nat_gateway", _then(in_use, EC2Backend.create_nat_gateway))
    vpc_endpoints.install()
    mend(Instance, "terminate", _terminate)
    mend(SecurityGroupRule, "__eq__", _same_rule)
    for actions in (ReservationActions, PlacementActions):
        for name, method in vars(actions).items():
            if not name.startswith("_"):
                mend(EC2Response, name, method)
    clock.every_tick(something_due, settle_nat_gateways)
