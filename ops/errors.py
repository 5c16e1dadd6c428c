"""The command's exit codes, and the exceptions that carry them to the one place that prints them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class Code(IntEnum):
    """How `steadfast` ends (README.md)."""

    DONE = 0
    BUG = 1
    """A bug, or a verification that fails."""
    INVALID = 2
    REFUSED = 3
    """Not done, to be safe."""
    LEFT_OVER = 4
    CLOUD = 5
    """The cloud or the cluster failed."""
    RUN_FAILED = 6


class OpsError(Exception):
    """What went wrong in people's words; `details` are the single problems, `fix` says what to do."""

    code = Code.BUG

    def __init__(self, message: str, *, details: Sequence[str] = (), fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = list(details)
        self.fix = fix


class VerificationError(OpsError):
    """A verification that fails."""

    code = Code.BUG


class InvalidInputError(OpsError):
    """What was asked for cannot be; nothing was created."""

    code = Code.INVALID


class RefusedError(OpsError):
    """It could be done and should not be."""

    code = Code.REFUSED


class LeftOverError(OpsError):
    """Something that should be gone is still there, or cannot be shown to be gone."""

    code = Code.LEFT_OVER


class CloudError(OpsError):
    """AWS or the cluster did not do what it should."""

    code = Code.CLOUD


class RunFailedError(OpsError):
    """The training run did not reach its target."""

    code = Code.RUN_FAILED
