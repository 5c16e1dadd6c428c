"""Throttling on demand: "Rate exceeded", as AWS refuses what comes too fast."""

from __future__ import annotations

import io
from typing import Any
from urllib.parse import parse_qs

from werkzeug.wrappers import Response

from ops.local.aws.services.errors import refusal as error_response
from ops.local.aws.services.errors import service_of
from ops.local.aws.settings import LIVE

FORM_BYTES_MAX = 1_000_000


def refusal(environ: dict[str, Any]) -> Response | None:
    """The refusal of this request, if it is to be throttled."""
    if not any(failure.kind == "throttling" for failure in LIVE.current.failures):
        return None
    operation = _operation(environ)
    service = service_of(environ)
    if not LIVE.strikes("throttling", f"{service}:{operation}"):
        return None
    code = "RequestLimitExceeded" if service == "ec2" else "ThrottlingException"
    if service == "cloudformation":
        code = "Throttling"
    return error_response(code, "Rate exceeded", environ, 400)


def _operation(environ: dict[str, Any]) -> str:
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return str(target).rsplit(".", 1)[-1]
    if str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded"):
        body = environ["wsgi.input"].read(min(int(environ.get("CONTENT_LENGTH") or 0), FORM_BYTES_MAX))
        environ["wsgi.input"] = io.BytesIO(body)
        return parse_qs(body.decode()).get("Action", [""])[0]
    return f"{environ.get('REQUEST_METHOD')} {environ.get('PATH_INFO')}"
