"""ft_launcher's and nvrx-control's command lines, every flag explicit: NVRx's defaults change (NVRx#271).

Written against nvidia-resiliency-ext 0.7.0; a golden test holds both lines. Left out on purpose:
`--ft-nvrx-logfile` and `--ft-per-cycle-applog-prefix` (a gRPC server on all addresses without authentication,
and up to 60 s at the end of a job; the container's log has the same lines), attribution (an LLM), NVRx's
storage check (a failure closes the rendezvous when there is no spare; `trainer.launch` checks before it joins).
"""

from __future__ import annotations

from environments.environment import Environment
from trainer.config import RecoveryConfig
from trainer.exit_codes import ExitCode

MONITOR_INTERVAL_S = 0.3
WORKERS_STOP_TIMEOUT_S = 15
"""Between SIGTERM and SIGKILL of ranks that are restarted anyway."""
READ_TIMEOUT_S = 60
CHECK_INTERVAL_S = 1.0
"""NVRx looks every 5 s by default; detection is late by up to this."""
SAFETY_FACTOR = 5.0
GPU_RECLAIM_TIMEOUT_S = 50.0
GPU_RECLAIM_TOLERANCE_MIB = 512.0
"""NVML's second memory interface, which NVRx reads, counts 0 MiB on an idle H200 (the first one 615 MiB)."""
GPU_RECLAIM_POLL_S = 1.0


def term_timeout_s(recovery: RecoveryConfig) -> float:
    """Seconds ft_launcher gives its ranks after a SIGTERM: a tenth of the pod's grace period, at least 5 s,
    is left to write the verdict and leave. NVRx's default is 30 minutes."""
    grace_s = recovery.termination_grace_s
    return grace_s - max(5.0, grace_s / 10)


def heartbeat_timeout_s(recovery: RecoveryConfig) -> float:
    """Seconds of silence that mean a hung rank; NVRx's default is no detection at all."""
    return recovery.timeouts("cuda").heartbeat_s


def nnodes(environment: Environment) -> str:
    """`MIN:MAX`: MIN nodes train, the others wait. A bare number kills the job when one more joins (NVRx#348)."""
    return f"{environment.nodes}:{environment.nodes + environment.spares}"


def rendezvous_conf(recovery: RecoveryConfig, *, hosting: bool) -> str:
    """The store's settings, the same on both sides. Whole seconds: NVRx parses integers.

    By itself NVRx looks for the store every 2 to 3 s (`store_connect_wait_seconds`), after a random sleep of up to
    a second; `trainer.launch` has waited already.
    """
    common = {
        "join_timeout": int(recovery.rendezvous_timeout_s),
        "last_call_timeout": recovery.last_call_timeout_s,
        "read_timeout": READ_TIMEOUT_S,
    }
    client = {} if hosting else {"is_host": 0, "store_connect_wait_seconds": 0}
    return ",".join(f"{key}={value}" for key, value in {**client, **common}.items())


def _flags(pairs: dict[str, object]) -> list[str]:
    return [f"{flag}={_text(value)}" for flag, value in pairs.items()]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def launcher_command(environment: Environment, rendezvous_id: str) -> list[str]:
    """The whole of what ft_launcher is given. Paths and addresses only as $(VARIABLES) of the container."""
    recovery = environment.training.recovery
    return [
        *_flags(_rendezvous_flags(environment, rendezvous_id)),
        *_flags(_restart_flags(recovery)),
        *_flags(_detection_flags(recovery)),
        *_flags(_node_flags()),
        "-m",
        "trainer.forked",
        "trainer.train",
    ]


def _rendezvous_flags(environment: Environment, rendezvous_id: str) -> dict[str, object]:
    return {
        "--nnodes": nnodes(environment),
        "--nproc-per-node": environment.instance.gpus,
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": "$(STEADFAST_STORE_ENDPOINT)",
        "--rdzv-id": rendezvous_id,
        "--rdzv-conf": rendezvous_conf(environment.training.recovery, hosting=False),
        # Other pods cannot resolve this pod's host name, which is what NVRx would announce.
        "--local-addr": "$(POD_IP)",
    }


def _restart_flags(recovery: RecoveryConfig) -> dict[str, object]:
    return {
        "--max-restarts": recovery.max_restarts,
        "--monitor-interval": MONITOR_INTERVAL_S,
        "--term-timeout": term_timeout_s(recovery),
        "--workers-stop-timeout": WORKERS_STOP_TIMEOUT_S,
        "--ft-max-no-progress-cycles": recovery.max_no_progress_cycles,
        "--ft-min-progress-iterations": 1,
        "--ft-checkpoint-iteration-file": "$(STEADFAST_RUN_DIR)/progress",
        "--ft-no-restart-exit-code": int(ExitCode.NO_PROGRESS),
    }


def _detection_flags(recovery: RecoveryConfig) -> dict[str, object]:
    return {
        "--ft-workload-check-interval": CHECK_INTERVAL_S,
        "--ft-initial-rank-heartbeat-timeout": recovery.start_timeout_s,
        "--ft-rank-heartbeat-timeout": heartbeat_timeout_s(recovery),
        "--ft-safety-factor": SAFETY_FACTOR,
        "--ft-rank-termination-signal": "SIGKILL",
        "--ft-skip-section-response": True,
        "--ft-install-exception-hook": False,
        "--ft-log-level": "INFO",
    }


def _node_flags() -> dict[str, object]:
    return {
        "--ft-enable-nic-healthcheck": True,
        "--ft-enable-nic-monitor": False,
        "--ft-enable-dist-storage-healthcheck": False,
        "--ft-gpu-memory-reclaim-timeout": GPU_RECLAIM_TIMEOUT_S,
        "--ft-gpu-memory-tolerance-mb": GPU_RECLAIM_TOLERANCE_MIB,
        "--ft-gpu-memory-poll-interval": GPU_RECLAIM_POLL_S,
        "--ft-check-remaining-processes": False,
    }


def control_command(environment: Environment, rendezvous_id: str) -> list[str]:
    """The whole of what nvrx-control is given.

    It is given the pod's own address: a way through its Service would need a hairpin and a NetworkPolicy for
    it. Cycle information comes from here, since only the store's host writes it, and its launchers' side of
    that knows Slurm's job ids only.
    """
    flags: dict[str, object] = {
        "--nnodes": nnodes(environment),
        "--rdzv-backend": "c10d",
        "--rdzv-endpoint": "$(POD_IP):$(STEADFAST_STORE_PORT)",
        "--rdzv-id": rendezvous_id,
        "--rdzv-conf": rendezvous_conf(environment.training.recovery, hosting=True),
        "--local-addr": "$(POD_IP)",
        "--ft-no-restart-exit-code": int(ExitCode.NO_PROGRESS),
        "--ft-enable-log-server": False,
        "--ft-cycle-info-dir": "$(STEADFAST_RUN_DIR)/launcher",
        "--ft-cycle-info-job-id": rendezvous_id,
    }
    return _flags(flags)
