"""What the CloudFormation API refuses, and what a resource's failure looks like."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from botocore.exceptions import ClientError
from moto.core.exceptions import ServiceException


class ValidationError(ServiceException):
    """A request that CloudFormation refuses before it changes anything."""

    code = "ValidationError"


class ChangeSetNotFoundError(ServiceException):
    """The CLI tells a missing change set from other errors by this code."""

    code = "ChangeSetNotFound"

    def __init__(self, name: str) -> None:
        super().__init__(f"ChangeSet [{name}] does not exist")


class ResourceError(Exception):
    """A resource that could not be made, changed or removed, with the reason its event carries."""


class CancelledError(ResourceError):
    """Another resource failed first, so this one was given up."""


# https://docs.aws.amazon.com/cloudformation-cli/latest/userguide/resource-type-test-contract-errors.html
HANDLER_ERROR_CODES = (
    ("AlreadyExists", "AlreadyExists"),
    ("InUse", "AlreadyExists"),
    ("Duplicate", "AlreadyExists"),
    ("LimitExceeded", "ServiceLimitExceeded"),
    ("Throttl", "Throttling"),
    ("NotFound", "NotFound"),
    ("NoSuch", "NotFound"),
    ("AccessDenied", "AccessDenied"),
    ("DependencyViolation", "InvalidRequest"),
    ("Invalid", "InvalidRequest"),
    ("Validation", "InvalidRequest"),
    ("BadRequest", "InvalidRequest"),
)


SERVICE_NAMES = {"FSx": "FSx", "SSM": "SSM", "IAM": "Iam"}


def handler_error_code(api_code: str) -> str:
    """The CloudFormation handler's code for a service's error code."""
    return next((code for part, code in HANDLER_ERROR_CODES if part in api_code), "GeneralServiceException")


def reason_from_api_error(error: ClientError, resource_type: str) -> str:
    """A status reason as CloudFormation words a service's refusal."""
    service = resource_type.split("::")[1]
    details: dict[str, Any] = error.response.get("Error", {})
    metadata = error.response.get("ResponseMetadata", {})
    return handler_reason(
        message=(
            f"{details.get('Message', '')} (Service: {SERVICE_NAMES.get(service, service.capitalize())}, "
            f"Status Code: {metadata.get('HTTPStatusCode', 400)}, "
            f"Request ID: {metadata.get('RequestId', uuid4())})"
        ),
        code=handler_error_code(details.get("Code", "")),
    )


def handler_reason(message: str, code: str) -> str:
    """A status reason with a handler's message and error code."""
    return f'Resource handler returned message: "{message}" (RequestToken: {uuid4()}, HandlerErrorCode: {code})'
