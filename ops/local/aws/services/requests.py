"""What a request is about, before moto has read it."""

from __future__ import annotations

import io
from typing import Any
from urllib.parse import parse_qs

READING = ("Describe", "Get", "List", "Lookup", "Validate", "AssumeRole")
FORM_BYTES_MAX = 1_000_000


def service(environ: dict[str, Any]) -> str:
    """The service that the request is signed for."""
    scope = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].split(",")[0].split("/")
    return scope[3] if len(scope) > 3 else ""


def operation(environ: dict[str, Any]) -> str:
    """The operation's name, or method and path where only they tell it."""
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return str(target).rsplit(".", 1)[-1]
    if str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded"):
        body = environ["wsgi.input"].read(min(int(environ.get("CONTENT_LENGTH") or 0), FORM_BYTES_MAX))
        environ["wsgi.input"] = io.BytesIO(body)
        return parse_qs(body.decode()).get("Action", [""])[0]
    return f"{environ.get('REQUEST_METHOD')} {environ.get('PATH_INFO')}"


def only_reads(environ: dict[str, Any]) -> bool:
    """Whether the request cannot change anything that is worth a snapshot."""
    return operation(environ).startswith((*READING, "GET ", "HEAD "))
