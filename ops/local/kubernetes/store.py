"""All objects of the cluster, on disk before anybody sees them, and the log that watches read."""

from __future__ import annotations

import json
import sqlite3
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.local.kubernetes.errors import already_exists, conflict, not_found
from ops.local.kubernetes.kinds import POD, Kind, by_kind
from ops.local.kubernetes.objects import (
    Object,
    finalizers_of,
    is_terminating,
    name_of,
    namespace_of,
    timestamp,
)
from ops.local.state_files import UnreadableStateError

_KEPT_CHANGES = 5000
_FORMAT = 1
"""Of the file; to be raised with whatever older code could not read, or would read wrongly."""


@dataclass(frozen=True)
class Ref:
    """Names one object."""

    kind: Kind
    namespace: str | None
    name: str

    @property
    def key(self) -> str:
        """The object's key on disk."""
        return f"{self.kind.resource}/{self.namespace or ''}/{self.name}"


@dataclass(frozen=True)
class Change:
    """One entry of the log: ADDED, MODIFIED or DELETED."""

    version: int
    type: str
    ref: Ref
    obj: Object
    old: Object | None
    """The object before; None when it was added."""


def ref_of(obj: Object) -> Ref:
    """The reference to an object that carries apiVersion and kind."""
    kind = by_kind(obj["apiVersion"], obj["kind"])
    if kind is None:
        raise LookupError(f"{obj['apiVersion']} {obj['kind']} is not served")
    return Ref(kind, namespace_of(obj), name_of(obj))


def _copy(obj: Object) -> Object:
    copied: Object = json.loads(json.dumps(obj))
    return copied


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        _require_format(db, path)
    except sqlite3.OperationalError:  # of the machine, not of the file
        raise
    except sqlite3.DatabaseError as error:
        db.close()
        raise UnreadableStateError(path, f"it is damaged ({error})", path.parent) from None
    # A killed server loses nothing that was written; a killed machine may, and its pods are gone with it.
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=OFF")
    db.execute("CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, version INTEGER, body TEXT)")
    db.execute("CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY, version INTEGER)")
    return db


def _require_format(db: sqlite3.Connection, path: Path) -> None:
    [(written,)] = db.execute("PRAGMA user_version").fetchall()
    [(tables,)] = db.execute("SELECT count(*) FROM sqlite_master").fetchall()
    if not tables:
        db.execute(f"PRAGMA user_version={_FORMAT}")
    elif written != _FORMAT:
        db.close()
        why = f"another version of this project wrote it (format {written}; this one has {_FORMAT})"
        raise UnreadableStateError(path, why, path.parent)


class Store:
    """Objects by reference. What `peek` and `select` return is shared: read it, never change it."""

    def __init__(self, path: Path) -> None:
        """Raises UnreadableStateError for a file of another version of the code."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = _open(path)
        self._objects: dict[Kind, dict[Ref, Object]] = {}
        self.changed = threading.Condition(threading.RLock())
        self._log: deque[Change] = deque(maxlen=_KEPT_CHANGES)
        try:
            self.version = self._load()
        except (ValueError, LookupError) as error:
            self._db.close()
            why = f"it holds what this version does not know ({error})"
            raise UnreadableStateError(path, why, path.parent) from None
        self.oldest_version = self.version

    def _load(self) -> int:
        for (body,) in self._db.execute("SELECT body FROM objects ORDER BY version"):
            obj = json.loads(body)
            ref = ref_of(obj)
            self._objects.setdefault(ref.kind, {})[ref] = obj
        row = self._db.execute("SELECT version FROM counter").fetchone()
        return int(row[0]) if row else 1

    def close(self) -> None:
        """Closes the file."""
        with self.changed:
            self._db.close()

    def peek(self, ref: Ref) -> Object | None:
        """The object itself, read-only."""
        with self.changed:
            return self._objects.get(ref.kind, {}).get(ref)

    def get(self, ref: Ref) -> Object:
        """A copy, or 404."""
        found = self.peek(ref)
        if found is None:
            raise not_found(ref.kind, ref.name)
        return _copy(found)

    def select(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        """All objects of a kind, read-only, in one namespace or in all."""
        with self.changed:
            objects = list(self._objects.get(kind, {}).values())
        return [o for o in objects if namespace is None or namespace_of(o) == namespace]

    def create(self, obj: Object) -> Object:
        """Adds an object; 409 if the name is taken."""
        ref = ref_of(obj)
        with self.changed:
            present = self.peek(ref)
            if present is not None:
                raise already_exists(ref.kind, ref.name, being_deleted=is_terminating(present))
            new = _copy(obj)
            new["metadata"].setdefault("uid", str(uuid.uuid4()))
            new["metadata"].update(creationTimestamp=timestamp(), generation=1)
            return self._write("ADDED", ref, new)

    def modify(self, ref: Ref, change: Callable[[Object], object], expected_version: str | None = None) -> Object:
        """Applies `change` to a copy and keeps it; 409 if the object is no longer at `expected_version`."""
        with self.changed:
            old = self.peek(ref)
            if old is None:
                raise not_found(ref.kind, ref.name)
            if expected_version and expected_version != old["metadata"]["resourceVersion"]:
                why = "the object has been modified; please apply your changes to the latest version and try again"
                raise conflict(ref.kind, ref.name, why)
            new = _copy(old)
            change(new)
            if new == old:
                return new
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
            if _may_go(new):
                return self._write("DELETED", ref, new)
            return self._write("MODIFIED", ref, new)

    def try_modify(self, ref: Ref, change: Callable[[Object], object]) -> None:
        """`modify` for controllers: an object that is gone meanwhile is no error."""
        with self.changed:
            if self.peek(ref) is not None:
                self.modify(ref, change)

    def remove(self, ref: Ref) -> None:
        """Takes an object away, whatever its finalizers say."""
        with self.changed:
            obj = self.peek(ref)
            if obj is not None:
                self._write("DELETED", ref, _copy(obj))

    @contextmanager
    def atomically(self) -> Iterator[None]:
        """All writes inside reach the disk together or not at all, wherever the server is killed."""
        with self.changed:
            if self._db.in_transaction:
                yield
                return
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("COMMIT")

    def _write(self, change_type: str, ref: Ref, obj: Object) -> Object:
        version = self.version + 1
        obj["metadata"]["resourceVersion"] = str(version)
        with self.atomically():
            if change_type == "DELETED":
                self._db.execute("DELETE FROM objects WHERE key=?", (ref.key,))
            else:
                row = (ref.key, version, json.dumps(obj))
                self._db.execute("INSERT OR REPLACE INTO objects VALUES (?,?,?)", row)
            self._db.execute("INSERT OR REPLACE INTO counter VALUES (0,?)", (version,))
        bucket = self._objects.setdefault(ref.kind, {})
        old = bucket.get(ref)
        if change_type == "DELETED":
            bucket.pop(ref, None)
        else:
            bucket[ref] = obj
        self.version = version
        if len(self._log) == _KEPT_CHANGES:
            self.oldest_version = self._log[0].version
        self._log.append(Change(version, change_type, ref, obj, old))
        self.changed.notify_all()
        return _copy(obj)

    def changes_since(self, version: int, timeout_s: float) -> list[Change]:
        """What happened after `version`; waits up to `timeout_s` for something to happen."""
        with self.changed:
            if self.version <= version:
                self.changed.wait(timeout_s)
            return [c for c in self._log if c.version > version]

    def wait(self, version: int, timeout_s: float) -> None:
        """Returns when the store has moved on from `version`, or after `timeout_s`."""
        with self.changed:
            if self.version <= version:
                self.changed.wait(timeout_s)


def _may_go(obj: Object) -> bool:
    """A deletion that nothing holds up any more."""
    if not is_terminating(obj) or finalizers_of(obj):
        return False
    is_pod = obj["kind"] == POD.kind and obj["apiVersion"] == POD.api_version
    return not is_pod or obj["metadata"].get("deletionGracePeriodSeconds") == 0
