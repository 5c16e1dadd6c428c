"""Makes, changes and removes single resources of a stack."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from ops.local.aws import resources as models
from ops.local.aws.cloudformation import schemas
from ops.local.aws.cloudformation.errors import (
    CancelledError,
    ResourceError,
    ValidationError,
    reason_from_api_error,
)
from ops.local.aws.cloudformation.history import set_resource
from ops.local.aws.cloudformation.intrinsics import Evaluator
from ops.local.aws.cloudformation.state import ACCOUNT, Resource, Stack
from ops.local.aws.gate import GATE
from ops.local.aws.resources.base import Context, Made, ResourceModel
from ops.local.aws.settings import LIVE

LOG = logging.getLogger(__name__)
REPLACING = "Requested update requires the creation of a new physical resource; hence creating one."


class Worker:
    """Works on the resources of one stack during one operation."""

    def __init__(self, stack: Stack, evaluator: Evaluator, import_existing: bool = False) -> None:
        self.stack = stack
        self.evaluator = evaluator
        self.import_existing = import_existing
        self.cancelled = threading.Event()

    def create(self, resource: Resource, body: dict[str, Any]) -> None:
        """Makes the resource; its record is complete before this returns."""
        try:
            properties = self._properties(resource, body)
            set_resource(self.stack, resource, "CREATE_IN_PROGRESS")
            self._make(resource, properties)
        except Exception as error:
            set_resource(self.stack, resource, "CREATE_FAILED", reason_of(error, resource))
            raise ResourceError(reason_of(error, resource)) from error
        set_resource(self.stack, resource, "CREATE_COMPLETE")

    def _make(self, resource: Resource, properties: dict[str, Any]) -> None:
        model, context = self._model(resource), self._context(resource, properties)
        kept = resource.deletion_policy in ("Retain", "RetainExceptOnCreate")
        adopted = model.find(context) if self.import_existing and kept else None
        if adopted is not None:
            self._claim(resource, adopted)
            return
        self._strike("create_fails", resource)
        slow = LIVE.strikes("slow", resource.type, resource.logical_id)
        made = model.create(context)
        self._claim(resource, made)
        if slow is not None:
            until = time.monotonic() + LIVE.real_s(slow.extra_s)
            context.wait(lambda: time.monotonic() >= until, limit_s=slow.extra_s * 2)

    def update(self, resource: Resource, body: dict[str, Any]) -> Resource | None:
        """Brings the resource to `body`; gives its old physical self where that was replaced."""
        try:
            properties = self._properties(resource, body)
            if properties == resource.properties:
                return None
            schema = schemas.schema_of(resource.type, self.stack.region) or {}
            replaced = schemas.is_replaced(schema, resource.properties, properties)
            reason = REPLACING if replaced else ""
            set_resource(self.stack, resource, "UPDATE_IN_PROGRESS", reason)
            self._strike("update_fails", resource)
            if replaced:
                return self._replace(resource, properties)
            self._change(resource, properties)
        except Exception as error:
            set_resource(self.stack, resource, "UPDATE_FAILED", reason_of(error, resource))
            raise ResourceError(reason_of(error, resource)) from error
        set_resource(self.stack, resource, "UPDATE_COMPLETE")
        return None

    def restore(self, resource: Resource, before: Resource) -> None:
        """Changes the resource back to what it was, as a rollback does."""
        set_resource(self.stack, resource, "UPDATE_IN_PROGRESS")
        try:
            self._change(resource, before.properties)
        except Exception as error:
            set_resource(self.stack, resource, "UPDATE_FAILED", reason_of(error, resource))
            raise ResourceError(reason_of(error, resource)) from error
        set_resource(self.stack, resource, "UPDATE_COMPLETE")

    def delete(self, resource: Resource, policy: str) -> None:
        """Removes the resource, unless its policy keeps it."""
        if policy in ("Retain", "RetainExceptOnCreate"):
            set_resource(self.stack, resource, "DELETE_SKIPPED")
            return
        set_resource(self.stack, resource, "DELETE_IN_PROGRESS")
        try:
            self._strike("delete_fails", resource)
            model = models.find(resource.type)
            if model is None:
                raise ResourceError(f"This emulator has no model for {resource.type}")
            model.delete(self._context(resource, resource.properties))
        except Exception as error:
            set_resource(self.stack, resource, "DELETE_FAILED", reason_of(error, resource))
            raise ResourceError(reason_of(error, resource)) from error
        set_resource(self.stack, resource, "DELETE_COMPLETE")

    def _replace(self, resource: Resource, properties: dict[str, Any]) -> Resource:
        old = Resource(
            resource.logical_id,
            resource.type,
            physical_id=resource.physical_id,
            properties=resource.properties,
            attributes=resource.attributes,
            depends=resource.depends,
            deletion_policy=resource.deletion_policy,
            update_replace_policy=resource.update_replace_policy,
        )
        with GATE.changing():
            self.stack.replaced.append(old)
        self._make(resource, properties)
        set_resource(self.stack, resource, "UPDATE_COMPLETE")
        return old

    def _change(self, resource: Resource, properties: dict[str, Any]) -> None:
        changed = self._model(resource).update(self._context(resource, properties))
        with GATE.changing():
            resource.properties = properties
            resource.attributes = {**resource.attributes, **changed}

    def _properties(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        properties: dict[str, Any] = self.evaluator.value(body.get("Properties", {}))
        wrong = schemas.violations(resource.type, self.stack.region, properties)
        if wrong:
            raise ResourceError(
                "Properties validation failed for resource {} with message:\n{}".format(
                    resource.logical_id, "\n".join(wrong)
                )
            )
        if not resource.physical_id:
            resource.properties = properties
        return properties

    def _claim(self, resource: Resource, made: Made) -> None:
        with GATE.changing():
            resource.physical_id, resource.attributes = made.physical_id, made.attributes
        if resource.status == "CREATE_IN_PROGRESS" and not resource.reason:
            set_resource(self.stack, resource, "CREATE_IN_PROGRESS", "Resource creation Initiated")

    def _model(self, resource: Resource) -> ResourceModel:
        model = models.find(resource.type)
        if model is None:
            raise ValidationError(f"Template format error: Unrecognized resource types: [{resource.type}]")
        return model

    def _context(self, resource: Resource, properties: dict[str, Any]) -> Context:
        return Context(
            region=self.stack.region,
            account=ACCOUNT,
            stack_name=self.stack.name,
            stack_id=self.stack.id,
            logical_id=resource.logical_id,
            type=resource.type,
            stack_tags=self.stack.settings.tags,
            properties=properties,
            old=resource.properties,
            physical_id=resource.physical_id,
            claim=lambda made: self._claim(resource, made),
            cancelled=self.cancelled,
        )

    def _strike(self, kind: Any, resource: Resource) -> None:
        failure = LIVE.strikes(kind, resource.type, resource.logical_id)
        if failure is not None:
            raise ResourceError(failure.reason or "Internal Failure")


def reason_of(error: BaseException, resource: Resource | None = None) -> str:
    """The reason that an event carries for the error."""
    if isinstance(error, (ResourceError, CancelledError)):
        return str(error)
    if isinstance(error, ValidationError):
        return error.message
    if isinstance(error, ClientError):
        return reason_from_api_error(error, resource.type if resource else "AWS::CloudFormation")
    if isinstance(error, BotoCoreError):
        return f"Properties validation failed: {error}"
    LOG.error("a resource model failed", exc_info=error)
    return f"Internal Failure of the emulator: {type(error).__name__}: {error}"
