"""Jobs that end in seconds on two CPU ranks, and what a good end is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pods

from trainer.config import TrainConfig
from trainer.faults.schema import Fault

STEPS = 36
BASE: dict[str, Any] = {
    "model": {"dim": 64, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 96},
    "data": {"sequence_length": 32, "global_batch_size": 4},
    "loop": {"steps": STEPS, "eval_every": 15, "eval_batches": 1, "micro_batch_size": 1},
    "checkpoint": {"persist_every": 10},
    "recovery": {
        "in_process": True,
        "collective_timeout_s": 4,
        "heartbeat_timeout_s": 20,
        "termination_grace_s": 60,
        "start_timeout_s": 60,
        "rendezvous_timeout_s": 60,
    },
}


def config(**sections: dict[str, Any]) -> TrainConfig:
    """BASE with some settings changed."""
    return TrainConfig.model_validate(
        {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in (*BASE, *sections)}
    )


def fault(kind: str, step: int, rank: int = 1, **more: Any) -> Fault:
    """One fault, named for what it is and where."""
    entry = {"id": f"{kind.replace('_', '-')}-{step}-{rank}", "class": kind, "step": step, "rank": rank, **more}
    return Fault.model_validate(entry)


StartJob = Callable[..., pods.Job]


def ended_well(job: pods.Job, undisturbed: dict[str, Any], timeout_s: float = 150) -> None:
    """Every pod exits 0 and the result has the bits of the undisturbed run."""
    codes = job.wait(timeout_s)
    assert set(codes.values()) == {0}, job.logs()
    assert job.completion() == undisturbed
