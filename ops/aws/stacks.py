"""The environment's stacks, as CloudFormation has them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from ops.aws.access import Aws, error_message

ORDER = ("archive", "network", "storage", "cluster", "capacity")
"""As they are deployed; destroyed in reverse, the archive only on request."""
POLL_S = 5.0
DELETED = "DELETE_COMPLETE"


@dataclass(frozen=True)
class Stack:
    """One stack that exists."""

    kind: str
    name: str
    status: str
    protected: bool
    outputs: dict[str, str]
    reason: str


def stack_name(aws: Aws, kind: str) -> str:
    """Name of a stack in CloudFormation."""
    return f"{aws.environment.name}-{kind}"


def stack(aws: Aws, kind: str) -> Stack | None:
    """None when there is none."""
    name = stack_name(aws, kind)
    try:
        found = aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
    except ClientError as error:
        if "does not exist" in error_message(error):
            return None
        raise
    if found["StackStatus"] == DELETED:
        return None
    return Stack(
        kind=kind,
        name=name,
        status=found["StackStatus"],
        protected=bool(found.get("EnableTerminationProtection")),
        outputs={item["OutputKey"]: item["OutputValue"] for item in found.get("Outputs", [])},
        reason=found.get("StackStatusReason", ""),
    )


def stacks(aws: Aws) -> list[Stack]:
    """Those that exist, in the order of their deployment."""
    return [found for kind in ORDER if (found := stack(aws, kind))]


def bootstrapped(aws: Aws) -> bool:
    """CDK's own stack is there."""
    try:
        aws.client("cloudformation").describe_stacks(StackName="CDKToolkit")
    except ClientError as error:
        if "does not exist" in error_message(error):
            return False
        raise
    return True


def lift_protection(aws: Aws, kind: str) -> None:
    """Only `destroy` does this, and only after the archive check."""
    aws.client("cloudformation").update_termination_protection(
        EnableTerminationProtection=False, StackName=stack_name(aws, kind)
    )


def delete(aws: Aws, kind: str, say: Callable[[str], None], limit_s: float, poll_s: float = POLL_S) -> list[str]:
    """Delete a stack and wait; what CloudFormation could not delete, with its reasons. Nothing when it is gone."""
    client = aws.client("cloudformation")
    name = stack_name(aws, kind)
    started_s = time.time()
    client.delete_stack(StackName=name)
    deadline_s = time.monotonic() + limit_s
    said: set[str] = set()
    while True:
        found = stack(aws, kind)
        if found is None:
            return []
        for event in _failures(client, name, started_s):
            if event not in said:
                said.add(event)
                say(event)
        if found.status == "DELETE_FAILED":
            return sorted(said) or [f"{name}: DELETE_FAILED: {found.reason}"]
        if time.monotonic() > deadline_s:
            return [f"{name}: still {found.status} after {limit_s:.0f} s"]
        time.sleep(poll_s)


def _failures(client: Any, name: str, since_s: float) -> Iterator[str]:
    try:
        pages = client.get_paginator("describe_stack_events").paginate(StackName=name)
        events = [event for page in pages for event in page["StackEvents"]]
    except ClientError:
        return  # the stack went between two calls
    for event in reversed(events):
        if event["ResourceStatus"] == "DELETE_FAILED" and event["Timestamp"].timestamp() >= since_s - 1:
            reason = event.get("ResourceStatusReason", "")
            yield f"{event['LogicalResourceId']} ({event['ResourceType']}): {reason}"
