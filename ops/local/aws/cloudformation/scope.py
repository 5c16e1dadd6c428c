"""Where a stack's evaluation finds resources, exports and pseudo parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.local.aws import clients
from ops.local.aws.cloudformation.errors import ValidationError
from ops.local.aws.cloudformation.intrinsics import NO_VALUE
from ops.local.aws.cloudformation.state import ACCOUNT, Resource, Stack, region


class StackScope:
    """Finds real values: what exists in the stack now."""

    def __init__(self, stack: Stack, resources: Mapping[str, Resource]) -> None:
        self.stack = stack
        self.resources = resources
        self.imports: set[str] = set()

    def pseudo(self, name: str) -> str | list[str] | None:
        """The value of a pseudo parameter, or None where the name is none."""
        values: dict[str, str | list[str]] = {
            "AWS::Region": self.stack.region,
            "AWS::AccountId": ACCOUNT,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
            "AWS::StackName": self.stack.name,
            "AWS::StackId": self.stack.id,
            "AWS::NotificationARNs": list(self.stack.notification_arns),
        }
        return values.get(name)

    def ref(self, name: str) -> Any:
        """The resource's physical id."""
        return self._resource(name).physical_id

    def attribute(self, name: str, attribute: str) -> Any:
        """The resource's attribute, as its model gave it."""
        resource = self._resource(name)
        if attribute not in resource.attributes:
            raise ValidationError(
                f"Template error: resource {name} does not support attribute type {attribute} in Fn::GetAtt"
            )
        return resource.attributes[attribute]

    def imported(self, export: str) -> Any:
        """The value of another stack's export, remembered as used."""
        exports = region(self.stack.region).exports()
        if export not in exports:
            raise ValidationError(f"No export named {export} found.")
        self.imports.add(export)
        return exports[export].value

    def zones(self, region_name: str) -> list[str]:
        """The region's availability zones."""
        found = clients.client("ec2", region_name).describe_availability_zones()
        return [zone["ZoneName"] for zone in found["AvailabilityZones"]]

    def parameter_store(self, name: str) -> str:
        """The value of a parameter of Systems Manager."""
        found = clients.client("ssm", self.stack.region).get_parameter(Name=name)
        return str(found["Parameter"]["Value"])

    def _resource(self, name: str) -> Resource:
        resource = self.resources.get(name)
        if resource is None or not resource.physical_id:
            raise ValidationError(
                "Template format error: Unresolved resource dependencies "
                f"[{name}] in the Resources block of the template"
            )
        return resource


class SymbolicScope(StackScope):
    """Leaves what only a deployment can know as a symbol, to compare two templates."""

    def ref(self, name: str) -> Any:
        """A symbol for the resource's physical id."""
        return {"Ref": name}

    def attribute(self, name: str, attribute: str) -> Any:
        """A symbol for the resource's attribute."""
        return {"Fn::GetAtt": [name, attribute]}


def without_no_value(value: Any) -> Any:
    """None in place of AWS::NoValue at the top of a value."""
    return None if value is NO_VALUE else value
