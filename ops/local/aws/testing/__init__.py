"""For tests of whatever runs on the emulated AWS: short ways to ask it for things."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import boto3

from ops.local.aws.local_aws import LocalAws
from ops.local.aws.settings import Failure

TIME_SCALE = 3000.0
ENDED = ("COMPLETE", "FAILED")
LIMIT_S = 90.0


@dataclass
class World:
    """The emulated AWS as a test uses it."""

    aws: LocalAws
    _clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str) -> Any:
        """A boto3 client that sees this AWS only; making one takes longer than most calls."""
        if service not in self._clients:
            self._clients[service] = self._new_client(service)
        return self._clients[service]

    def _new_client(self, service: str) -> Any:
        environ = self.aws.environ()
        return boto3.session.Session(
            aws_access_key_id=environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environ["AWS_SECRET_ACCESS_KEY"],
            region_name=self.aws.region,
        ).client(service, endpoint_url=self.aws.endpoint_url)

    def fail(self, **failure: Any) -> None:
        """Asks for one failure; without arguments for none."""
        self.aws.fail(*([Failure(**failure)] if failure else []))

    def change(self, name: str, resources: dict[str, Any], **template: Any) -> dict[str, Any]:
        """Creates or updates a stack by a change set; gives the change set."""
        cfn, body = self.client("cloudformation"), json.dumps({"Resources": resources, **template})
        exists = any(
            s["StackName"] == name and s["StackStatus"] != "REVIEW_IN_PROGRESS"
            for s in cfn.describe_stacks()["Stacks"]
        )
        kind = "UPDATE" if exists else "CREATE"
        if exists:
            cfn.delete_change_set(StackName=name, ChangeSetName="test")
        cfn.create_change_set(StackName=name, ChangeSetName="test", TemplateBody=body, ChangeSetType=kind)
        found: dict[str, Any] = cfn.describe_change_set(StackName=name, ChangeSetName="test")
        if found["Status"] == "FAILED":
            cfn.delete_change_set(StackName=name, ChangeSetName="test")
        return found

    def deploy(self, name: str, resources: dict[str, Any], **template: Any) -> str:
        """Brings a stack to the resources; gives its last status."""
        found = self.change(name, resources, **template)
        if found["Status"] == "FAILED":
            return str(found["StatusReason"])
        self.client("cloudformation").execute_change_set(StackName=name, ChangeSetName="test")
        return self.settle(name)

    def settle(self, name: str) -> str:
        """Waits for the stack's operation; gives its status."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            status = self.status(name)
            if status.endswith(ENDED) and not status.endswith("IN_PROGRESS"):
                return status
            time.sleep(0.05)
        raise AssertionError(f"{name} stays {status}")

    def status(self, name: str) -> str:
        """The status of the newest stack of that name, also after its end."""
        found = self.client("cloudformation").list_stacks()["StackSummaries"]
        return str([s["StackStatus"] for s in found if s["StackName"] == name][-1])

    def delete(self, name: str) -> str:
        """Deletes the stack; gives its last status."""
        self.client("cloudformation").delete_stack(StackName=name)
        return self.settle(name)

    def events(self, name: str) -> list[tuple[str, str, str]]:
        """Logical id, status and reason of every event of the newest stack of that name, the oldest first."""
        cfn = self.client("cloudformation")
        stack_id = [s["StackId"] for s in cfn.list_stacks()["StackSummaries"] if s["StackName"] == name][-1]
        pages = cfn.get_paginator("describe_stack_events").paginate(StackName=stack_id)
        newest_first = [event for page in pages for event in page["StackEvents"]]
        return [
            (e["LogicalResourceId"], e["ResourceStatus"], e.get("ResourceStatusReason", ""))
            for e in reversed(newest_first)
        ]

    def reasons(self, name: str, status: str) -> dict[str, str]:
        """The reason by logical id of every event with the status."""
        return {logical: reason for logical, s, reason in self.events(name) if s == status}

    def outputs(self, name: str) -> dict[str, str]:
        """The stack's outputs."""
        stack = self.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]
        return {o["OutputKey"]: o["OutputValue"] for o in stack.get("Outputs", [])}
