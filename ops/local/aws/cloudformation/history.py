"""Writes a stack's history: states and events, one at a time."""

from __future__ import annotations

from ops.local.aws.cloudformation.state import Event, Resource, Stack, now
from ops.local.aws.gate import GATE


def set_resource(stack: Stack, resource: Resource, status: str, reason: str = "") -> None:
    """The resource's new state and its event."""
    with GATE.changing():
        resource.status, resource.reason, resource.changed_at = status, reason, now()
        _add(stack, resource.logical_id, resource.physical_id, resource.type, status, reason)


def set_stack(stack: Stack, status: str, reason: str = "") -> None:
    """The stack's new state and its event."""
    with GATE.changing():
        stack.status, stack.reason = status, reason
        _add(stack, stack.name, stack.id, "AWS::CloudFormation::Stack", status, reason)


def _add(stack: Stack, logical_id: str, physical_id: str, kind: str, status: str, reason: str) -> None:
    stack.events.append(Event(stack.id, stack.name, logical_id, physical_id, kind, status, reason, stack.token))
