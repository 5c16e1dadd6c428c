"""NVRx's monitor of a rank, which lives as long as ft_launcher, through every start of the rank.

NVRx 0.7.0's `RankMonitorStateMachine` gives up for good when a connection is lost twice without a beat between
them: a rank dies, the next one connects and dies before its first step, of a second fault. From then on each beat
raises in the monitor, which closes the connection, and the rank ends with `RankMonitorClientError: Broken pipe`
after two steps, in every later attempt, until no progress ends the job. Nothing in ft_launcher reads that state.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("steadfast.monitors")


def outlive_ranks_without_a_beat() -> None:
    """From now on a monitor that waits for a rank's first beat goes on waiting when that rank is gone.

    In the launcher, before it forks its monitors. Where a later NVRx has other names, all stays as it is there.
    """
    try:
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorState, RankMonitorStateMachine

        between_ranks = (RankMonitorState.HANDLING_START, RankMonitorState.HANDLING_PROCESSING)
        lost = RankMonitorStateMachine.handle_ipc_connection_lost
    except (ImportError, AttributeError) as error:
        log.warning("NVRx's monitors are not the ones of 0.7.0, and are left as they are: %s", error)
        return

    def handle_ipc_connection_lost(self: Any) -> None:
        if self.state not in between_ranks:
            lost(self)

    RankMonitorStateMachine.handle_ipc_connection_lost = handle_ipc_connection_lost
