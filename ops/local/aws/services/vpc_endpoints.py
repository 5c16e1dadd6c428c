"""Endpoints in VPCs: gone when they are deleted, and such as services make unasked."""

from __future__ import annotations

from typing import Any

from moto.ec2.models import EC2Backend

from ops.local.aws.services import interfaces
from ops.local.aws.services.mending import Method, mend
from ops.local.aws.settings import LIVE


def install() -> None:
    """Deleted endpoints leave nothing; GuardDuty makes its own by configuration."""
    delete, subnet = EC2Backend.delete_vpc_endpoints, EC2Backend.create_subnet

    def delete_vpc_endpoints(self: Any, vpce_ids: list[str] | None = None) -> None:
        delete(self, vpce_ids)
        for endpoint_id in vpce_ids or []:
            self.vpc_end_points.pop(endpoint_id, None)

    def create_subnet(self: Any, vpc_id: str, *args: Any, **kwargs: Any) -> Any:
        made = subnet(self, vpc_id, *args, **kwargs)
        if LIVE.current.failures and LIVE.strikes("service_endpoint", "guardduty"):
            _guardduty(self, vpc_id, made.id)
        return made

    mend(EC2Backend, "delete_vpc_endpoints", delete_vpc_endpoints)
    mend(EC2Backend, "modify_vpc_endpoint", _modify)
    mend(EC2Backend, "create_subnet", create_subnet)


def _modify(
    self: Any, vpc_id: str, policy_doc: str, *, original: Method = EC2Backend.modify_vpc_endpoint, **changes: Any
) -> None:
    """Tables that come and go get and lose the route too, or the endpoint could not be deleted later."""
    endpoint = self.describe_vpc_endpoints(vpc_end_point_ids=[vpc_id])[0]
    before = list(endpoint.route_table_ids or [])
    original(self, vpc_id, policy_doc, **changes)
    after, prefix_list = list(endpoint.route_table_ids or []), endpoint.destination_prefix_list_id
    if prefix_list is None:
        return
    for table in (t for t in after if t not in before):
        self.create_route(table, None, gateway_id=vpc_id, destination_prefix_list_id=prefix_list)
    for table in (t for t in before if t not in after):
        self.delete_route(table, prefix_list)


def _guardduty(backend: Any, vpc_id: str, subnet_id: str) -> None:
    """Runtime monitoring puts an endpoint and a security group into the VPC, and leaves them there."""
    tags = {"GuardDutyManaged": "true"}
    group = backend.create_security_group(
        f"GuardDutyManagedSecurityGroup-{vpc_id}",
        f"Associated with VPC-{vpc_id} and tagged as GuardDutyManaged",
        vpc_id,
        tags=tags,
    )
    endpoint = backend.create_vpc_endpoint(
        vpc_id=vpc_id,
        service_name=f"com.amazonaws.{backend.region_name}.guardduty-data",
        endpoint_type="Interface",
        policy_document=None,
        route_table_ids=[],
        subnet_ids=[],
        security_group_ids=[group.id],
        tags=tags,
    )
    interface = interfaces.make(
        backend.region_name, subnet_id, [group.id], f"VPC Endpoint Interface {endpoint.id}"
    )
    endpoint.network_interface_ids.append(interface)
    endpoint.subnet_ids = [subnet_id]
