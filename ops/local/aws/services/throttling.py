"""Throttling on demand: "Rate exceeded", as AWS refuses what comes too fast."""

from __future__ import annotations

from typing import Any

from werkzeug.wrappers import Response

from ops.local.aws.services import requests
from ops.local.aws.services.errors import refusal as error_response
from ops.local.aws.settings import LIVE


def refusal(environ: dict[str, Any]) -> Response | None:
    """The refusal of this request, if it is to be throttled."""
    if not any(failure.kind == "throttling" for failure in LIVE.current.failures):
        return None
    operation = requests.operation(environ)
    service = requests.service(environ)
    if not LIVE.strikes("throttling", f"{service}:{operation}"):
        return None
    code = "RequestLimitExceeded" if service == "ec2" else "ThrottlingException"
    if service == "cloudformation":
        code = "Throttling"
    return error_response(code, "Rate exceeded", environ, 400)
