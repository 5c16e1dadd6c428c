"""ft_launcher's own timeline, and why it ends, read from its log: NVRx prints both there and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainer.events import Event

# shared_utils/profiling.py of NVRx 0.7.0: "  - Cycle: 1 Event: failure_detected Node: … Rank: 0 Time: … UTC"
_LINE = re.compile(r"Cycle: (\d+) Event: (\w+) Node: .* Rank: (\S+) Time: (\S+ \S+) UTC")
_EVENTS = {
    "failure_detected": Event.FAILURE_DETECTED,
    "worker_terminated": Event.WORKERS_STOPPED,
    "rendezvous_completed": Event.RENDEZVOUS_COMPLETED,
    "worker_start_completed": Event.WORKERS_STARTED,
}

# torch's multiprocessing/api.py: the first rank of this pod that failed, in a line of its own
_KILLED = re.compile(r" failed \(exitcode: -(\d+)\) local_rank: (\d+) \(pid: ")

ORPHANED = "nobody is left to open"
"""What `trainer.resilience.orphans` says in the same log."""
GPU_MEMORY_HELD = "GPU memory is still held"
"""What `trainer.resilience.gpu_memory` says there."""


def event_in(line: str) -> tuple[Event, dict[str, Any]] | None:
    """The ledger event that a line of ft_launcher's log stands for; NVRx's own with `cycle` and `at_wall_s`."""
    if ORPHANED in line:
        return Event.FAILURE_DETECTED, {"layer": "launcher", "detail": line.strip()}
    if GPU_MEMORY_HELD in line:
        return Event.GPU_MEMORY_HELD, {"detail": line.strip()}
    if match := _KILLED.search(line):
        return Event.RANK_KILLED, {"local_rank": int(match[2]), "signal": int(match[1])}
    match = _LINE.search(line)
    if match is None or match[2] not in _EVENTS:
        return None
    at = datetime.strptime(match[4], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)
    return _EVENTS[match[2]], {"cycle": int(match[1]), "layer": "launcher", "at_wall_s": at.timestamp()}


# launcher.py of NVRx 0.7.0, after time, level and host
_NO_RESTART = re.compile(
    r" launcher\.py:\d+ "
    r".*(No more restarts will be attempted|reported a no-restart decision|must not be restarted)"
)
_UNHEALTHY = re.compile(r" launcher\.py:\d+ Agent \.run\(\) raised UnhealthyNodeException: (.*)")


@dataclass
class LastWords:
    """Why a launcher ends, as it said before. Its exit code may not come: a store that closes has it killed."""

    no_restart: bool = False
    unhealthy: str | None = None

    def hear(self, line: str) -> None:
        """One line of its log."""
        self.no_restart = self.no_restart or _NO_RESTART.search(line) is not None
        if match := _UNHEALTHY.search(line):
            self.unhealthy = match[1].strip()
