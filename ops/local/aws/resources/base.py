"""What a resource model is, and what it is given to work with."""

from __future__ import annotations

import re
import secrets
import string
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from botocore.exceptions import ClientError

from ops.local.aws import clients
from ops.local.aws.cloudformation.errors import CancelledError, ResourceError, handler_reason
from ops.local.aws.settings import LIVE

Properties = Mapping[str, Any]
Attributes = dict[str, Any]
POLL_S = 0.05
DEPENDENTS_LIMIT_S = 1800
REAL_LIMIT_S = 60.0
"""No wait ends earlier: a busy machine is no reason for AWS to give up."""


@dataclass
class Made:
    """A physical resource: what Ref gives, and what Fn::GetAtt gives."""

    physical_id: str
    attributes: Attributes = field(default_factory=dict)


@dataclass
class Context:
    """Where and for whom a resource is made."""

    region: str
    account: str
    stack_name: str
    stack_id: str
    logical_id: str
    type: str
    stack_tags: Mapping[str, str]
    properties: Properties = field(default_factory=dict)
    """What the resource is to be; in a deletion what it was."""
    old: Properties = field(default_factory=dict)
    """In an update what it was."""
    physical_id: str = ""
    """In an update or a deletion which it is."""
    claim: Callable[[Made], None] = lambda _: None
    """Tells the engine at once what exists, so that a later failure does not leave it behind."""
    cancelled: threading.Event = field(default_factory=threading.Event)

    def client(self, service: str) -> Any:
        """A boto3 client of this emulated AWS."""
        return clients.client(service, self.region)

    def tags(self, own: object = None) -> dict[str, str]:
        """The resource's own tags, the stack's, and those that CloudFormation adds."""
        listed = own if isinstance(own, Mapping) else {t["Key"]: t["Value"] for t in own or ()}  # type: ignore[attr-defined]
        return {**self.stack_tags, **{str(k): str(v) for k, v in listed.items()}, **self.system_tags()}

    def system_tags(self) -> dict[str, str]:
        """What CloudFormation writes on everything it makes."""
        return {
            "aws:cloudformation:stack-name": self.stack_name,
            "aws:cloudformation:stack-id": self.stack_id,
            "aws:cloudformation:logical-id": self.logical_id,
        }

    def tag_list(self, own: object = None) -> list[dict[str, str]]:
        """The same tags as a list of Key and Value."""
        return [{"Key": key, "Value": value} for key, value in self.tags(own).items()]

    def name(self, limit: int = 64, lower: bool = False) -> str:
        """A physical name as CloudFormation generates them: stack, logical id, random letters."""
        alphabet = string.ascii_lowercase + string.digits if lower else string.ascii_letters + string.digits
        suffix = "".join(secrets.choice(alphabet) for _ in range(12))
        text = re.sub("[^A-Za-z0-9-]", "", f"{self.stack_name}-{self.logical_id}")
        return f"{(text.lower() if lower else text)[: limit - 13]}-{suffix}"

    def changed_tags(self) -> tuple[dict[str, str], list[str]]:
        """In an update: the tags to set, and the keys of those to take away."""
        before, after = self.tags(self.old.get("Tags")), self.tags(self.properties.get("Tags"))
        return {k: v for k, v in after.items() if before.get(k) != v}, sorted(before.keys() - after.keys())

    def wait(self, is_ready: Callable[[], bool], *, limit_s: float) -> None:
        """Polls until ready; `limit_s` is in emulated seconds, as CloudFormation's own limits."""
        deadline = time.monotonic() + max(LIVE.real_s(limit_s), REAL_LIMIT_S)
        while not is_ready():
            if self.cancelled.is_set():
                raise CancelledError("Resource creation cancelled")
            if time.monotonic() > deadline:
                raise ResourceError(handler_reason("Exceeded attempts to wait", "NotStabilized"))
            time.sleep(POLL_S)


class ResourceModel(ABC):
    """Makes, changes and removes one type of resource by AWS's own API."""

    type: ClassVar[str]

    @abstractmethod
    def create(self, ctx: Context) -> Made:
        """Makes it and waits until it can be used."""

    def update(self, ctx: Context) -> Attributes:
        """Changes it in place; gives the attributes that changed."""
        old, new = ctx.old, ctx.properties
        changed = sorted(key for key in {*old, *new} - {"Tags"} if old.get(key) != new.get(key))
        if changed:
            raise ResourceError(f"This emulator cannot update {', '.join(changed)} of {self.type} in place")
        return {}

    @abstractmethod
    def delete(self, ctx: Context) -> None:
        """Removes it and waits until it is gone; what is gone already is no error."""

    def find(self, ctx: Context) -> Made | None:  # noqa: ARG002 - for those that have names
        """The resource that exists by that name already, to be adopted; None for what has no name."""
        return None


@contextmanager
def absent_is_fine(*codes: str) -> Iterator[None]:
    """Around a deletion: what does not exist any more needs none."""
    try:
        yield
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code not in codes and "NotFound" not in code and "NoSuch" not in code:
            raise


def delete_once_free(ctx: Context, delete: Callable[[], object]) -> None:
    """Deletes what others may still hold: CloudFormation tries again for a good while before it gives up.

    So a function's interfaces, which live about 18 minutes longer than it, delay a deletion and do not fail it.
    """
    deadline = time.monotonic() + LIVE.real_s(DEPENDENTS_LIMIT_S)
    while True:
        try:
            with absent_is_fine():
                delete()
            return
        except ClientError as error:
            held = error.response["Error"]["Code"] == "DependencyViolation"
            if not held or ctx.cancelled.is_set() or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)
