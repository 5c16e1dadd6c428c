"""How moto's objects are written down: what pickle refuses, and big contents once each, by digest."""

from __future__ import annotations

import copyreg
import hashlib
import io
import os
import pickle
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.bindings._rust import openssl
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from moto.awslambda.models import LambdaFunction, LayerVersion
from moto.iam.models import AWSManagedPolicy, IAMBackend
from moto.s3.models import FakeKey

BLOB_BYTES = 65536
_folder = threading.local()


class Blob:
    """Big bytes that lie in a file of their own, named by their digest."""

    def __init__(self, digest: str) -> None:
        self.digest = digest

    def __reduce__(self) -> tuple[Callable[[str], bytes], tuple[str]]:
        return _read_blob, (self.digest,)


def _read_blob(digest: str) -> bytes:
    return (Path(_folder.path) / digest).read_bytes()


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)


class Pickling:
    """Writes and reads objects, with a folder for what is big."""

    def __init__(self, blobs: Path) -> None:
        self._blobs = blobs
        self._digests: dict[int, tuple[bytes, str]] = {}

    def dumps(self, world: Any) -> bytes:
        """The objects as bytes."""
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = copyreg.dispatch_table | self._reducers()
        pickler.dump(world)
        return buffer.getvalue()

    def loads(self, content: bytes) -> Any:
        """The objects again; call it where only this project's own files come in."""
        _folder.path = str(self._blobs)
        return pickle.loads(content)

    def _reducers(self) -> dict[type, Callable[[Any], Any]]:
        return {
            type(threading.Lock()): lambda _: (threading.Lock, ()),
            type(threading.RLock()): lambda _: (threading.RLock, ()),
            weakref.WeakValueDictionary: lambda d: (weakref.WeakValueDictionary, (dict(d),)),
            openssl.rsa.RSAPrivateKey: _reduce_private_key,
            openssl.ec.ECPrivateKey: _reduce_private_key,
            AWSManagedPolicy: lambda p: (_managed_policy, (p.arn, p.attachment_count)),
            LambdaFunction: self._reduce_code,
            LayerVersion: self._reduce_code,
            FakeKey: self._reduce_key,
            **dict.fromkeys((defaultdict, *defaultdict.__subclasses__()), _reduce_defaultdict),
        }

    def _blob(self, content: bytes) -> Blob:
        known = self._digests.get(id(content))
        if known is None:
            digest = hashlib.sha256(content).hexdigest()
            if not (self._blobs / digest).exists():
                write_whole(self._blobs / digest, content)
            # the bytes are kept with their digest: an id is only good while its object lives
            known = self._digests[id(content)] = (content, digest)
        return Blob(known[1])

    def _reduce_code(self, function: Any) -> Any:
        maker, arguments, state, *_ = function.__reduce_ex__(2)
        big = {k: v for k, v in state.items() if isinstance(v, bytes) and len(v) >= BLOB_BYTES}
        return maker, arguments, {**state, **{k: self._blob(v) for k, v in big.items()}}

    def _reduce_key(self, key: Any) -> Any:
        buffer = key._value_buffer
        if buffer.closed or buffer.seek(0, io.SEEK_END) < BLOB_BYTES:
            return key.__reduce_ex__(2)
        etag, digest = key.__dict__.get("_blob", ("", ""))
        if etag != key.etag or not (self._blobs / digest).exists():
            content = key.value
            digest = hashlib.sha256(content).hexdigest()
            write_whole(self._blobs / digest, content)
            key._blob = (key.etag, digest)
        state = {k: v for k, v in key.__dict__.items() if k not in ("_value_buffer", "lock")}
        return _restore_key, (state, Blob(digest))


def _restore_key(state: dict[str, Any], content: bytes) -> Any:
    key: Any = FakeKey.__new__(FakeKey)
    key.__setstate__({**state, "value": content})
    return key


def _reduce_private_key(key: Any) -> Any:
    return _restore_private_key, (key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),)


def _restore_private_key(pem: bytes) -> Any:
    return load_pem_private_key(pem, None)


def _reduce_defaultdict(found: defaultdict[Any, Any]) -> Any:
    factory = found.default_factory
    if getattr(factory, "__name__", "") == "<lambda>":
        factory = _nested_dict  # moto's Systems Manager: defaultdict(lambda: defaultdict(dict))
    return (
        _restore_defaultdict,
        (type(found), factory),
        getattr(found, "__dict__", None) or None,
        None,
        iter(found.items()),
    )


def _nested_dict() -> defaultdict[Any, dict[Any, Any]]:
    return defaultdict(dict)


def _restore_defaultdict(kind: type[defaultdict[Any, Any]], factory: Any) -> defaultdict[Any, Any]:
    """Subclasses of moto's want arguments that their own reduction does not give."""
    made = kind.__new__(kind)
    defaultdict.__init__(made, factory)
    return made


def _managed_policy(arn: str, attachment_count: int) -> Any:
    """AWS's own thousand policies are moto's; only how often each is attached is ours."""
    if "policies" not in _folder.__dict__:
        _folder.policies = {p.arn: p for p in IAMBackend("aws", "123456789012").aws_managed_policies}
    policy = _folder.policies[arn]
    policy.attachment_count = attachment_count
    return policy
