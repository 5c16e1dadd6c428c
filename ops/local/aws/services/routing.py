"""Puts a service of ours where moto would answer."""

from __future__ import annotations

import importlib
from typing import Any

from moto.core.responses import BaseResponse


def answer_with(service: str, response: type[BaseResponse]) -> None:
    """Every path of the service is answered by `response`; botocore's model tells the operation."""
    urls: Any = importlib.import_module(f"moto.{service}.urls")
    urls.url_paths = {"{0}/$": response.dispatch, "{0}/(?P<path>.+)$": response.dispatch}
