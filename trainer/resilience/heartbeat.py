"""The rank's line to ft_launcher's monitor: heartbeats, and ending the job or leaving the node on purpose."""

from __future__ import annotations

import os
from contextlib import suppress

from nvidia_resiliency_ext.fault_tolerance import (
    RankMonitorClient,
    WorkloadAction,
    WorkloadControlRequest,
)

from trainer.timeouts import Timeouts


class Heartbeat:
    """Does nothing where no ft_launcher watches (tests, plain torchrun)."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._client = RankMonitorClient() if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ else None
        if self._client:
            # The launcher's command line was written before anything was measured.
            learned = {"initial": timeouts.start_s, "subsequent": timeouts.heartbeat_s, "were_calculated": True}
            self._client.load_state_dict({self._client.CURRENT_TIMEOUTS_STATE_KEY: {"heartbeat": learned}})
            self._client.init_workload_monitoring()

    def beat(self) -> None:
        """About 20 µs: fire and forget."""
        if self._client:
            self._client.send_heartbeat()

    def end_job(self, reason: str) -> None:
        """Ask the launcher to end the whole job rather than restart it."""
        self._request(WorkloadAction.ShutdownWorkload, reason)

    def leave_node(self, reason: str) -> None:
        """Ask the launcher to take this node out of the job."""
        self._request(WorkloadAction.ExcludeThisNode, reason)

    def _request(self, action: WorkloadAction, reason: str) -> None:
        if self._client:
            request = WorkloadControlRequest(action=action, description=reason)
            self._client.send_workload_control_request(request)

    def close(self) -> None:
        """Stop being watched. The monitor may already be gone when the launcher is stopping us."""
        if self._client:
            with suppress(Exception):
                self._client.shutdown_workload_monitoring()
            self._client = None
