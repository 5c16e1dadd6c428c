"""Keeps the whole emulated world on disk: every moto backend and every stack, in one pickle.

A snapshot is written whole to a new file and renamed, so a server killed at any moment leaves the last
complete one. Big contents (assets in S3, code of functions) lie once each under `blobs/`, by digest.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

from moto.backends import get_backend
from moto.core.base_backend import BackendDict

from ops.local.aws.cloudformation import state
from ops.local.aws.gate import GATE
from ops.local.aws.pickling import Pickling, write_whole
from ops.local.aws.snapshot_format import content_of, sign, stamp
from ops.local.state_files import UnreadableStateError

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
SAVE_EVERY_S = 0.5
SAVE_AT_LEAST_EVERY_S = 3.0
GLOBAL_SERVICES = ("iam", "s3", "sts")


class Store:
    """The snapshot of one state directory. Made once the whole emulator is imported: it knows the code by that."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._stamp = stamp()
        self._file = state_dir / "world.pickle"
        self._pickling = Pickling(state_dir / "blobs")
        self._saved = -1
        self._stop = threading.Event()

    def load(self) -> None:
        """Puts back what was saved, if anything was. Raises UnreadableStateError for what other code has saved."""
        if not self._file.exists():
            return
        try:
            world = self._pickling.loads(content_of(self._file.read_bytes(), self._stamp))
        except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
            why = str(error) if isinstance(error, ValueError) else f"it is damaged ({error})"
            raise UnreadableStateError(self._file, why, self._state_dir) from None
        state.REGIONS.update(world["cloudformation"])
        for service, accounts in world["backends"].items():
            _put_back(service, accounts)

    def save(self) -> None:
        """Writes a snapshot if anything changed since the last one."""
        if self._saved == GATE.changes:
            return
        with GATE.still() as changes:
            world = {"cloudformation": state.REGIONS, "backends": {s: _take(s) for s in SERVICES}}
            content = self._pickling.dumps(world)
        write_whole(self._file, sign(self._stamp, content))
        self._saved = changes

    def save_forever(self) -> None:
        """Saves in the background until `stop`."""
        threading.Thread(target=self._run, name="snapshots", daemon=True).start()

    def stop(self) -> None:
        """Ends the background saving with one last snapshot."""
        self._stop.set()
        self.save()

    def _run(self) -> None:
        pause_s = SAVE_EVERY_S
        while not self._stop.wait(pause_s):
            began_s = time.monotonic()
            try:
                self.save()
            except Exception:  # the next one may well succeed, and the last complete one stays
                LOG.exception("no snapshot")
            # requests wait meanwhile: a tenth of the time, unless the machine is very slow
            pause_s = min(max(SAVE_EVERY_S, 10 * (time.monotonic() - began_s)), SAVE_AT_LEAST_EVERY_S)


def _take(service: str) -> dict[str, dict[str, Any]]:
    """The service's backends by account and region; of the partitions only the one that is used."""
    return {
        account: {r: b for r, b in regions.items() if service not in GLOBAL_SERVICES or r == "aws"}
        for account, regions in _backends(service).items()
    }


def _put_back(service: str, accounts: dict[str, dict[str, Any]]) -> None:
    backends = _backends(service)
    for account, regions in accounts.items():
        for region, backend in regions.items():
            dict.__setitem__(backends[account], region, backend)


def _backends(service: str) -> BackendDict[Any]:
    # the models of a backend must be importable before they are unpickled
    importlib.import_module(f"moto.{service}.models")
    return get_backend(service)  # type: ignore[call-overload]
