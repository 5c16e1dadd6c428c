"""A run's ledger while it grows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class LedgerTail:
    """Gives every record once. Files are read on from where the last look ended."""

    def __init__(self, events: Path) -> None:
        self._events = events
        self._read_bytes: dict[Path, int] = {}

    def fresh(self) -> Iterator[Mapping[str, Any]]:
        """Whole records written since the last call, file by file."""
        for path in sorted(self._events.glob("*.jsonl")):
            done = self._read_bytes.get(path, 0)
            if path.stat().st_size > done:
                yield from self._rest(path, done)

    def _rest(self, path: Path, done: int) -> Iterator[Mapping[str, Any]]:
        with path.open("rb") as file:
            file.seek(done)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes[path] = done + len(whole)
        yield from map(json.loads, whole.splitlines())
