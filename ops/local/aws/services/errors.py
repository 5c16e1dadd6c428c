"""What the emulator cannot do is refused at once: a 500 would be tried again for a minute."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.wrappers import Response

from ops.local.aws.services import requests

LOG = logging.getLogger(__name__)
WSGI = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def answered(app: WSGI, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """The application's answer; an exception in it becomes a refusal with status 400 that names it."""
    try:
        return app(environ, start_response)
    except Exception as error:
        LOG.exception("%s %s", environ.get("REQUEST_METHOD"), environ.get("PATH_INFO"))
        return refusal("EmulatorError", f"{type(error).__name__}: {error}", environ, 400)(environ, start_response)


def refusal(code: str, message: str, environ: dict[str, Any], status: int) -> Response:
    """An error in the protocol that the request speaks."""
    if _speaks_json(environ):
        body = json.dumps({"__type": code, "message": message, "Message": message})
        return Response(body, status, {"x-amzn-ErrorType": code}, content_type="application/x-amz-json-1.1")
    text = message.replace("&", "&amp;").replace("<", "&lt;")
    error = f"<Error><Type>Sender</Type><Code>{code}</Code><Message>{text}</Message></Error>"
    ec2 = requests.service(environ) == "ec2"
    body = f"<Response><Errors>{error}</Errors></Response>" if ec2 else f"<ErrorResponse>{error}</ErrorResponse>"
    return Response(error if requests.service(environ) == "s3" else body, status, content_type="text/xml")


def _speaks_json(environ: dict[str, Any]) -> bool:
    return "HTTP_X_AMZ_TARGET" in environ or requests.service(environ) in ("eks", "lambda", "scheduler")
