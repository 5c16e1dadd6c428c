"""Kubernetes' quantities of bytes."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_QUANTITY = re.compile(r"^(\d+)([kMGT]?|[KMGT]i)$")


def size_bytes(quantity: str | int) -> int:
    """Bytes of `5120Mi`. Raises ValueError for what is no whole quantity."""
    match = _QUANTITY.match(str(quantity))
    if not match:
        raise ValueError(f"{quantity!r} is not a whole number of bytes with a unit of Kubernetes")
    return int(match[1]) * _UNITS[match[2]]
