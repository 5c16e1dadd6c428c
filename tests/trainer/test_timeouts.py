"""Timeouts: derived, and in the order in which layers must act."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.config import RecoveryConfig

pytestmark = pytest.mark.unit


@given(st.floats(0.01, 100), st.sampled_from(["cpu", "cuda"]))
def test_derived_tables_are_in_order(step_s: float, device: str) -> None:
    table = RecoveryConfig(termination_grace_s=1e5).timeouts(device, step_s)
    assert table.contradictions() == []
    assert table.collective_s >= 20 * step_s


def test_contradictions_are_refused_with_what_to_change() -> None:
    with pytest.raises(ValidationError, match="termination_grace_s") as caught:
        RecoveryConfig(termination_grace_s=10, heartbeat_timeout_s=3)
    assert "barrier_s" in str(caught.value)


def test_the_table_can_be_read_in_the_log_of_each_start() -> None:
    table = RecoveryConfig(collective_timeout_s=60, heartbeat_timeout_s=None).timeouts("cuda")
    assert str(table).startswith("collective 60 s, soft 90 s, hard 120 s, barrier 180 s, heartbeat 240 s, grace ")
