"""Puts the emulated AWS together: moto's services, ours in place of three of them, and what is mended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)

from ops.local.aws import resources, services
from ops.local.aws.cloudformation import engine, state
from ops.local.aws.gate import GATE
from ops.local.aws.services import errors, requests, throttling

StartResponse = Callable[..., Any]


class RequestHandler(MotoRequestHandler):
    """moto's handler without a line of log for each request."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Errors only; a request is no news."""
        if type == "error":
            super().log(type, message, *args)


class Application:
    """Every request goes through here: throttled on demand, and never during a snapshot."""

    def __init__(self) -> None:
        self._moto = DomainDispatcherApplication(create_backend_app)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answers one request."""
        refusal = throttling.refusal(environ)
        if refusal is not None:
            return refusal(environ, start_response)
        with GATE.changing(counts=not requests.only_reads(environ)):
            return list(errors.answered(self._moto, environ, start_response))


def application() -> Application:
    """The whole emulated AWS as a WSGI application."""
    services.install()
    resources.types()
    return Application()


def go() -> None:
    """Lets time pass, and goes on with what a stopped server left behind; after the state is loaded."""
    services.start_clock()
    resume()


def resume() -> None:
    """Goes on with what a stopped server left behind."""
    for region in list(state.REGIONS.values()):
        for stack in list(region.stacks.values()):
            if stack.busy:
                engine.resume(stack)
