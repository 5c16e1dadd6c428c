"""Watches: the present state if asked for, then every change, as lines of JSON.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping

from ops.local.kubernetes.errors import ApiError
from ops.local.kubernetes.kinds import Kind
from ops.local.kubernetes.objects import Object
from ops.local.kubernetes.selectors import Selection, number
from ops.local.kubernetes.store import Change, Store
from ops.local.kubernetes.tables import as_table

_LIMIT_S = 300.0
_WAKE_S = 1.0
_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


def watch(store: Store, selection: Selection, args: Mapping[str, str], *, table: bool) -> Iterator[str]:
    """Checks the request at once and returns the stream; 410 for a version that is no longer kept."""
    since = number(args, "resourceVersion") or 0
    if since and since < store.oldest_version:
        raise ApiError(410, "Expired", f"too old resource version: {since} ({store.oldest_version})")
    with store.changed:
        present = store.select(selection.kind, selection.namespace)
        version = since or store.version
    stream = _Stream(selection, table)
    first = [] if since else [stream.line("ADDED", o) for o in present if selection.matches(o)]
    # kubectl from 1.35 on lists by watching and waits for this bookmark.
    if args.get("sendInitialEvents") in ("true", "1"):
        first.append(stream.bookmark(version))
    limit_s = float(number(args, "timeoutSeconds") or _LIMIT_S)
    return stream.lines(store, version, first, time.monotonic() + limit_s)


class _Stream:
    def __init__(self, selection: Selection, table: bool) -> None:
        self._selection, self._table = selection, table

    def lines(self, store: Store, version: int, first: list[str], end_s: float) -> Iterator[str]:
        yield from first
        while (left_s := end_s - time.monotonic()) > 0:
            for change in store.changes_since(version, min(left_s, _WAKE_S)):
                version = change.version
                if (event := self._event(change)) is not None:
                    yield self.line(event, change.obj)

    def _event(self, change: Change) -> str | None:
        """An object that enters or leaves the selection is added or deleted, whatever happened to it."""
        if change.ref.kind != self._selection.kind:
            return None
        was = change.old is not None and self._selection.matches(change.old)
        if change.type != "DELETED" and self._selection.matches(change.obj):
            return "MODIFIED" if was else "ADDED"
        return "DELETED" if was else None

    def line(self, event: str, obj: Object) -> str:
        kind = self._selection.kind
        shown = as_table(kind, [obj], obj["metadata"]["resourceVersion"]) if self._table else obj
        return json.dumps({"type": event, "object": shown}) + "\n"

    def bookmark(self, version: int) -> str:
        meta = {"resourceVersion": str(version), "annotations": _INITIAL_EVENTS_END}
        obj = _empty(self._selection.kind) | {"metadata": meta}
        return json.dumps({"type": "BOOKMARK", "object": obj}) + "\n"


def _empty(kind: Kind) -> Object:
    return {"kind": kind.kind, "apiVersion": kind.api_version}
