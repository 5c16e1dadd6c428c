"""Puts our methods into moto's classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


def mend(owner: Any, name: str, method: Method) -> Method:
    """Replaces or adds a method; gives the one that was there."""
    before: Method = getattr(owner, name, method)
    setattr(owner, name, method)
    return before
