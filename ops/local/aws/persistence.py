"""Keeps the whole emulated world on disk: every moto backend and every stack, in one pickle.

A snapshot is written whole to a new file and renamed, so a server killed at any moment leaves the last
complete one. Big contents (assets in S3, code of functions) lie once each under `blobs/`, by digest.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import logging
import os
import pickle
import threading
import types
import weakref
from collections import defaultdict
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from moto.backends import get_backend
from moto.core.base_backend import BackendDict
from moto.s3.models import FakeKey

from ops.local.aws.cloudformation import state
from ops.local.aws.gate import GATE

SERVICES = [
    "autoscaling",
    "awslambda",
    "budgets",
    "cloudtrail",
    "cloudwatch",
    "codebuild",
    "ec2",
    "ecr",
    "eks",
    "events",
    "fsx",
    "iam",
    "kms",
    "logs",
    "s3",
    "scheduler",
    "secretsmanager",
    "servicequotas",
    "sns",
    "sqs",
    "ssm",
    "sts",
]
LOG = logging.getLogger(__name__)
BLOB_BYTES = 65536
SAVE_EVERY_S = 0.5
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


class _Pickler(pickle.Pickler):
    """Takes what pickle refuses: locks, weak maps, a backend's own small functions; puts big bytes aside."""

    def __init__(self, file: io.BytesIO, blobs: Path) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._blobs = blobs

    def persistent_id(self, obj: Any) -> str | None:
        """Big bytes are stored once, under their digest."""
        if not isinstance(obj, bytes) or len(obj) < BLOB_BYTES:
            return None
        digest = hashlib.sha256(obj).hexdigest()
        path = self._blobs / digest
        if not path.exists():
            _write_whole(path, obj)
        return digest

    def reducer_override(self, obj: Any) -> Any:
        """How to make again what holds no state of its own."""
        if isinstance(obj, _LOCKS):
            return (threading.RLock, ()) if isinstance(obj, _LOCKS[1]) else (threading.Lock, ())
        if isinstance(obj, weakref.WeakValueDictionary):
            return weakref.WeakValueDictionary, (dict(obj),)
        if isinstance(obj, FakeKey) and _is_big(obj):
            return _restore_key, (_key_state(obj), self._key_blob(obj))
        if isinstance(obj, (RSAPrivateKey, EllipticCurvePrivateKey)):
            pem = obj.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            return _restore_private_key, (pem,)
        if isinstance(obj, defaultdict) and type(obj) is not defaultdict:
            return _restore_defaultdict, (type(obj), obj.default_factory), obj.__dict__, None, iter(obj.items())
        if isinstance(obj, types.FunctionType) and "<lambda>" in obj.__qualname__:
            return _restore_nested_dict, ()
        return NotImplemented

    def _key_blob(self, key: FakeKey) -> str:
        etag, digest = key.__dict__.get("_blob", ("", ""))
        if etag != key.etag or not (self._blobs / digest).exists():
            digest = str(self.persistent_id(key.value))
            key.__dict__["_blob"] = (key.etag, digest)
        return digest


def _restore_private_key(pem: bytes) -> Any:
    return load_pem_private_key(pem, None)


def _is_big(key: FakeKey) -> bool:
    try:
        return len(key.value) >= BLOB_BYTES
    except ValueError:  # its file is closed once it is deleted
        return False


def _key_state(key: FakeKey) -> dict[str, Any]:
    return {k: v for k, v in key.__dict__.items() if k not in ("_value_buffer", "lock")}


def _restore_defaultdict(kind: type[defaultdict[Any, Any]], factory: Any) -> defaultdict[Any, Any]:
    """Subclasses of moto's want arguments that their own reduction does not give."""
    made = kind.__new__(kind)
    defaultdict.__init__(made, factory)
    return made


def _restore_nested_dict() -> Any:
    """moto's Systems Manager keeps defaultdict(lambda: defaultdict(dict))."""
    return _nested_dict


def _nested_dict() -> Any:
    return defaultdict(dict)


_blobs_of_this_load = threading.local()


def _restore_key(state_: dict[str, Any], digest: str) -> Any:
    key: Any = FakeKey.__new__(FakeKey)
    content = (Path(_blobs_of_this_load.path) / digest).read_bytes()
    key.__setstate__({**state_, "value": content})
    return key


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, blobs: Path) -> None:
        super().__init__(file)
        self._blobs = blobs

    def persistent_load(self, pid: str) -> bytes:
        """The big bytes of that digest."""
        return (self._blobs / pid).read_bytes()


def _write_whole(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)


class Store:
    """The snapshot of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "world.pickle"
        self._blobs = state_dir / "blobs"
        self._saved = -1
        self._stop = threading.Event()

    def load(self) -> None:
        """Puts back what was saved, if anything was."""
        if not self._file.exists():
            return
        _blobs_of_this_load.path = str(self._blobs)
        world = _Unpickler(io.BytesIO(self._file.read_bytes()), self._blobs).load()
        state.REGIONS.update(world["cloudformation"])
        for service, accounts in world["backends"].items():
            _put_back(service, accounts)

    def save(self) -> None:
        """Writes a snapshot if anything changed since the last one."""
        if self._saved == GATE.changes:
            return
        buffer = io.BytesIO()
        with GATE.still() as changes:
            world = {"cloudformation": state.REGIONS, "backends": {s: _take(s) for s in SERVICES}}
            _Pickler(buffer, self._blobs).dump(world)
        _write_whole(self._file, buffer.getvalue())
        self._saved = changes

    def save_forever(self) -> None:
        """Saves in the background until `stop`."""
        threading.Thread(target=self._run, name="snapshots", daemon=True).start()

    def stop(self) -> None:
        """Ends the background saving with one last snapshot."""
        self._stop.set()
        self.save()

    def _run(self) -> None:
        while not self._stop.wait(SAVE_EVERY_S):
            try:
                self.save()
            except Exception:  # the next one may well succeed, and the last complete one stays
                LOG.exception("no snapshot")


def _take(service: str) -> dict[str, dict[str, Any]]:
    return {account: dict(regions) for account, regions in _backends(service).items()}


def _put_back(service: str, accounts: dict[str, dict[str, Any]]) -> None:
    backends = _backends(service)
    for account, regions in accounts.items():
        for region, backend in regions.items():
            dict.__setitem__(backends[account], region, backend)


def _backends(service: str) -> BackendDict[Any]:
    # the models of a backend must be importable before they are unpickled
    importlib.import_module(f"moto.{service}.models")
    return get_backend(service)  # type: ignore[call-overload]
