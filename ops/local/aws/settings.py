"""What one runs the emulated AWS with: its time scale and the failures one asks for."""

from __future__ import annotations

import fnmatch
import threading
from collections import Counter
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ops.local.state_files import UnreadableStateError

FILE_NAME = "aws.json"

FailureKind = Literal[
    "create_fails",  # the resource's creation ends in CREATE_FAILED
    "update_fails",  # its update ends in UPDATE_FAILED
    "delete_fails",  # its deletion ends in DELETE_FAILED
    "slow",  # its creation takes `extra_s` emulated seconds longer
    "no_capacity",  # EC2 has no instances of the type that `match` names
    "stuck_interface",  # network interfaces whose description matches outlive their owner
    "export_pending",  # exports to the data repository do not end
    "throttling",  # calls of the operation that `match` names are refused with "Rate exceeded"
    "service_endpoint",  # a service (GuardDuty) makes an endpoint and a security group in new VPCs
    "events_missing",  # the stack's events are not delivered
]


class Failure(BaseModel):
    """One failure on demand."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: FailureKind
    match: str = "*"
    """A shell pattern over what the failure is about: a resource's type or logical id, an instance type,
    an interface's description, `service:Operation`, or a stack's name."""
    reason: str = ""
    times: int | None = None
    """How often it strikes; None: always."""
    extra_s: float = 0.0


class Settings(BaseModel):
    """The file `aws.json` of the state directory; read again whenever it changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time_scale: float = Field(default=300.0, gt=0)
    """Emulated seconds that pass in one real second."""
    kubeconfig: Path | None = None
    """The local Kubernetes that clusters stand for; None: clusters without one."""
    node_maker: str = ""
    """`module:class` of the NodeMaker (ops.local.aws.nodes) that gives node groups their nodes; empty: the
    local Kubernetes' own nodes if the kubeconfig is its, Node objects alone otherwise."""
    quotas: dict[str, int] = Field(default_factory=dict)
    """Quotas that differ from AWS's defaults, by name (ops.local.aws.services.quotas)."""
    failures: tuple[Failure, ...] = ()


def read(path: Path) -> Settings:
    """The settings of a file. Raises UnreadableStateError with every problem of one written by other code."""
    try:
        return Settings.model_validate_json(path.read_text())
    except ValidationError as error:
        problems = (f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors())
        raise UnreadableStateError(path, "; ".join(problems), path) from None


class Live:
    """The settings of a running server: the file as it is now, and how often each failure struck."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._read_at_ns = -1
        self._settings = Settings()
        self._struck: Counter[Failure] = Counter()
        self._lock = threading.Lock()

    def follow(self, state_dir: Path) -> None:
        """Takes the settings from the state directory from now on. Raises UnreadableStateError."""
        self._path = state_dir / FILE_NAME
        self._refresh()

    @property
    def current(self) -> Settings:
        """The settings as the file has them now."""
        with self._lock:
            self._refresh()
            return self._settings

    def _refresh(self) -> None:
        if self._path is None or not self._path.exists():
            return
        changed_at_ns = self._path.stat().st_mtime_ns
        if changed_at_ns != self._read_at_ns:
            self._settings = read(self._path)
            self._read_at_ns = changed_at_ns
            self._struck.clear()

    def strikes(self, kind: FailureKind, *subjects: str) -> Failure | None:
        """The failure of that kind that strikes one of the subjects now, counted."""
        settings = self.current
        with self._lock:
            for failure in settings.failures:
                if failure.kind == kind and any(fnmatch.fnmatchcase(s, failure.match) for s in subjects):
                    if failure.times is not None and self._struck[failure] >= failure.times:
                        continue
                    self._struck[failure] += 1
                    return failure
        return None

    def real_s(self, emulated_s: float) -> float:
        """How long so many emulated seconds take here."""
        return emulated_s / self.current.time_scale


LIVE = Live()
