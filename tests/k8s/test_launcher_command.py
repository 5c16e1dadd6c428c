"""The command lines: two golden ones, and what must hold in all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.environment import Environment
from k8s.launcher_command import (
    control_command,
    heartbeat_timeout_s,
    launcher_command,
    rendezvous_conf,
    term_timeout_s,
)
from trainer.config import RecoveryConfig

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]

GOLDEN_LAUNCHER = """\
--nnodes=8:10
--nproc-per-node=8
--rdzv-backend=c10d
--rdzv-endpoint=$(STEADFAST_STORE_ENDPOINT)
--rdzv-id=pretrain-4
--rdzv-conf=is_host=0,store_connect_wait_seconds=0,join_timeout=900,last_call_timeout=2,read_timeout=60
--local-addr=$(POD_IP)
--max-restarts=100
--monitor-interval=0.3
--term-timeout=108
--workers-stop-timeout=15
--ft-max-no-progress-cycles=3
--ft-min-progress-iterations=1
--ft-checkpoint-iteration-file=$(STEADFAST_RUN_DIR)/progress
--ft-no-restart-exit-code=93
--ft-workload-check-interval=1
--ft-initial-rank-heartbeat-timeout=600
--ft-rank-heartbeat-timeout=45
--ft-safety-factor=5
--ft-rank-termination-signal=SIGKILL
--ft-skip-section-response=true
--ft-install-exception-hook=false
--ft-log-level=INFO
--ft-enable-nic-healthcheck=true
--ft-enable-nic-monitor=false
--ft-enable-dist-storage-healthcheck=false
--ft-gpu-memory-reclaim-timeout=50
--ft-gpu-memory-tolerance-mb=512
--ft-gpu-memory-poll-interval=1
--ft-check-remaining-processes=false
-m
trainer.forked
trainer.train"""

GOLDEN_CONTROL = """\
--nnodes=8:10
--rdzv-backend=c10d
--rdzv-endpoint=$(POD_IP):$(STEADFAST_STORE_PORT)
--rdzv-id=pretrain-4
--rdzv-conf=join_timeout=900,last_call_timeout=2,read_timeout=60
--local-addr=$(POD_IP)
--ft-no-restart-exit-code=93
--ft-enable-log-server=false
--ft-cycle-info-dir=$(STEADFAST_RUN_DIR)/launcher
--ft-cycle-info-job-id=pretrain-4"""


@pytest.fixture
def large(make_environment: Any) -> Environment:
    recovery = {"collective_timeout_s": 10, "heartbeat_timeout_s": 45, "termination_grace_s": 120}
    environment: Environment = make_environment(nodes=8, spares=2, training={"recovery": recovery})
    return environment


def test_golden_launcher_line_for_nvrx_0_7_0(large: Environment) -> None:
    """Reports: NVRx#142 (an endpoint that differs by node), NVRx#271 (defaults that change)."""
    assert "\n".join(launcher_command(large, "pretrain-4")) == GOLDEN_LAUNCHER


def test_golden_control_line_for_nvrx_0_7_0(large: Environment) -> None:
    assert "\n".join(control_command(large, "pretrain-4")) == GOLDEN_CONTROL


def test_both_sides_agree_on_the_rendezvous(any_environment: Environment) -> None:
    launcher, control = launcher_command(any_environment, "r-1"), control_command(any_environment, "r-1")
    for flag in ("--nnodes=", "--rdzv-id=", "--rdzv-backend="):
        (ours,) = [item for item in launcher if item.startswith(flag)]
        assert ours in control
    (conf,) = [item for item in control if item.startswith("--rdzv-conf=")]
    assert conf.removeprefix("--rdzv-conf=") in next(item for item in launcher if item.startswith("--rdzv-conf="))


def test_a_spare_does_not_end_the_job(make_environment: Any) -> None:
    """Reports: NVRx#348, NVRx#357: 0.6.0 counts all agents in a re-rendezvous against a bare number."""
    assert "--nnodes=2:3" in launcher_command(make_environment(nodes=2, spares=1), "r-1")
    locked = (ROOT / "docker" / "nvrx.lock").read_text(encoding="utf-8")
    assert int(locked.split("nvidia-resiliency-ext==0.")[1][0]) >= 7


@given(st.floats(min_value=241, max_value=36_000))
def test_ranks_are_killed_before_the_pod_is(grace_s: float) -> None:
    timeout_s = term_timeout_s(RecoveryConfig(termination_grace_s=grace_s))
    assert 0 < timeout_s <= grace_s - 5


def test_the_last_call_is_a_setting() -> None:
    assert "last_call_timeout=7," in rendezvous_conf(RecoveryConfig(last_call_timeout_s=7), hosting=False)


def test_a_hang_is_always_looked_for() -> None:
    assert heartbeat_timeout_s(RecoveryConfig()) == 240
    assert heartbeat_timeout_s(RecoveryConfig(collective_timeout_s=3, heartbeat_timeout_s=12)) == 12
