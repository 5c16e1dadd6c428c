"""NVRx's own state machine, with and without what is changed in it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from nvidia_resiliency_ext import fault_tolerance
from nvidia_resiliency_ext.fault_tolerance import RankMonitorState, RankMonitorStateMachine

from trainer.resilience import monitors

pytestmark = pytest.mark.unit


class Silent:
    """A monitor's logger."""

    def log_restarter_event(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(name="machine")
def _machine() -> Iterator[RankMonitorStateMachine]:
    """Of a rank that has trained."""
    lost = RankMonitorStateMachine.handle_ipc_connection_lost
    machine = RankMonitorStateMachine(Silent())
    machine.handle_heartbeat_msg()
    yield machine
    RankMonitorStateMachine.handle_ipc_connection_lost = lost


def test_nvrx_gives_up_after_two_ranks_without_a_beat_between(machine: RankMonitorStateMachine) -> None:
    """Once this fails, `trainer.resilience.monitors` has had its day."""
    machine.handle_ipc_connection_lost()
    machine.handle_ipc_connection_lost()
    with pytest.raises(AssertionError, match="ABORTED"):
        machine.handle_heartbeat_msg()


def test_ranks_without_a_beat_are_outlived(machine: RankMonitorStateMachine) -> None:
    monitors.outlive_ranks_without_a_beat()
    for _ in range(3):
        machine.handle_ipc_connection_lost()
        machine.handle_ipc_connection_lost()
        machine.handle_ipc_connection_lost()
        assert machine.state is RankMonitorState.HANDLING_START
        machine.handle_heartbeat_msg()
        assert machine.state is RankMonitorState.HANDLING_COMPLETED
    machine.handle_signal()
    assert machine.state is RankMonitorState.FINALIZED


def test_another_nvrx_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr(fault_tolerance, "RankMonitorStateMachine")
    with caplog.at_level(logging.WARNING):
        monitors.outlive_ranks_without_a_beat()
    assert "left as they are" in caplog.text
