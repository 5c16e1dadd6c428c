"""An error that AWS answers with."""

from __future__ import annotations

from moto.core.exceptions import ServiceException


class AwsError(ServiceException):
    """A refusal with any of AWS's codes: moto looks up the codes of its own exceptions in botocore's models."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code, message)
