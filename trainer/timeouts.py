"""One table of timeouts, derived and checked for order. Imports no torch.

Each layer must give the one below it time to act: a collective that hangs raises before the in-process layer
calls it a hang, that layer acts before its monitor kills, all of it before ft_launcher's heartbeat runs out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise

FLOOR_S = {"cuda": 60.0, "cpu": 5.0}
"""Shortest derived collective timeout: a GPU step may compile, autotune or wait for one slow read."""
STEPS_PER_COLLECTIVE = 20.0


@dataclass(frozen=True)
class Timeouts:
    """Seconds, in the order in which they must fire."""

    collective_s: float
    soft_s: float
    hard_s: float
    barrier_s: float
    heartbeat_s: float
    grace_s: float
    start_s: float
    rendezvous_s: float

    def __str__(self) -> str:
        return ", ".join(f"{name.removesuffix('_s')} {value:g} s" for name, value in asdict(self).items())

    def contradictions(self) -> list[str]:
        """Pairs out of order, each with what to change."""
        order = ("collective_s", "soft_s", "hard_s", "barrier_s", "heartbeat_s", "grace_s")
        values = asdict(self)
        return [
            f"timeouts: {low} = {values[low]:g} s must be below {high} = {values[high]:g} s; "
            "change recovery.collective_timeout_s, recovery.heartbeat_timeout_s or recovery.termination_grace_s"
            for low, high in pairwise(order)
            if values[low] >= values[high]
        ]


def derive(
    *,
    collective_s: float | None,
    heartbeat_s: float | None,
    grace_s: float,
    start_s: float,
    rendezvous_s: float,
    device: str,
    step_s: float | None = None,
) -> Timeouts:
    """The table for `device` ("cuda" or "cpu"): what is None is derived, `step_s` is the measured step time."""
    measured = STEPS_PER_COLLECTIVE * step_s if step_s else 0.0
    collective = collective_s or max(FLOOR_S[device], measured)
    return Timeouts(
        collective_s=collective,
        soft_s=1.5 * collective,
        hard_s=2.0 * collective,
        barrier_s=3.0 * collective,
        heartbeat_s=heartbeat_s or 4.0 * collective,
        grace_s=grace_s,
        start_s=start_s,
        rendezvous_s=rendezvous_s,
    )
