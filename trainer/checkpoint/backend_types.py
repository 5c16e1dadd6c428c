"""What the engine and a way of saving pass between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from trainer.checkpoint.arena import Arena
from trainer.checkpoint.chain import Position
from trainer.checkpoint.decisions import Decision
from trainer.checkpoint.judge import Asked
from trainer.checkpoint.layout import Layout
from trainer.checkpoint.mail import Session
from trainer.checkpoint.staging import DeviceStager


@dataclass(frozen=True)
class Launch:
    """An order to save the state as it is now."""

    position: Position
    ticket: str
    """The same on all ranks, and of this launch alone."""
    origin: str | None
    persist: bool
    stage: str
    wait_s: float
    """How long a slot may be waited for."""


@dataclass(frozen=True)
class StateNow:
    """The state at a launch."""

    tensors: Mapping[str, torch.Tensor]
    locals: Mapping[str, torch.Tensor]
    """This rank's parts of `tensors`."""
    host: Mapping[str, torch.Tensor]


class Backend(Asked, Protocol):
    """A way of saving. What rank 0 asks it before it decides is in `Asked`."""

    def prepare(self, layout: Layout, ranks_here: int) -> Arena | None:
        """Get memory ready. Raises ArenaError."""

    @property
    def landing(self) -> DeviceStager | None:
        """Device memory that a restore may use before all ranks have agreed."""

    def settle(self, decision: Decision, now: Mapping[str, torch.Tensor]) -> None:
        """Every rank, at the start of a step: what rank 0 has settled for all."""

    def begin(self, session: Session) -> None:
        """An attempt begins."""

    def tell(self, decision: Decision) -> None:
        """Rank 0: bring a decision to the others."""

    def launch(self, launch: Launch, now: StateNow) -> None:
        """Save the state as it is now; returns once training may change it (or `guard` sees to that)."""

    def guard(self) -> None:
        """The optimizer is about to change the state."""

    def poll(self) -> None:
        """Called after every step."""

    def drain(self, timeout_s: float, *, of: Position | None = None) -> bool:
        """Wait until nothing is under way, or rank 0 until `of` is committed: deletions may take their time."""

    def abandon(self, timeout_s: float) -> bool:
        """The attempt is over; False if something still holds on."""

    def left(self) -> list[Position]:
        """What abandoned attempts have under way here that still takes a slot."""

    def close(self) -> None:
        """The process ends."""

    def request_stop(self, reason: str) -> None:
        """From a signal handler."""

    def fate(self, position: Position) -> str:
        """Rank 0, after a drain: `committed`, or what went wrong."""

    def will_persist(self, step: int) -> bool:
        """Whether the newest launch goes to storage."""

    def overheads(self) -> dict[str, Any]:
        """For the report."""
