"""Which code a snapshot is of: a pickle of other code may load and break later, so its first line decides."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Final

FORMAT: Final = 1
"""To be raised when the meaning of what is kept changes and its fields do not."""


def stamp() -> dict[str, Any]:
    """The code that runs, once all of the emulator is imported: moto's version, and the fields of our classes."""
    return {"format": FORMAT, "moto": metadata.version("moto"), "fields": _fields_digest()}


def _fields_digest() -> str:
    lines = sorted(f"{c.__module__}.{c.__qualname__} {f.name} {f.type}" for c in _classes() for f in _fields(c))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _classes() -> Iterator[type]:
    ours = [module for name, module in list(sys.modules.items()) if name.startswith("ops.local.aws.")]
    for module in ours:
        for found in vars(module).values():
            if isinstance(found, type) and found.__module__ == module.__name__:
                yield found


def _fields(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def sign(written: dict[str, Any], content: bytes) -> bytes:
    """The snapshot with its stamp in front."""
    return json.dumps(written).encode() + b"\n" + content


def content_of(signed: bytes, mine: dict[str, Any]) -> bytes:
    """What follows the stamp. Raises ValueError, with the difference, for the stamp of other code."""
    head, _, content = signed.partition(b"\n")
    try:
        theirs = json.loads(head)
    except ValueError:
        raise ValueError("it does not say which version of this project wrote it") from None
    if theirs != mine:
        raise ValueError(
            f"another version of this project wrote it ({_words(theirs)}; this one has {_words(mine)})"
        )
    return content


def _words(written: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in written.items()) if isinstance(written, dict) else str(written)
