"""Steps of a sharded model: what they leave behind, and what the optimizer is given."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.config import TrainConfig
from trainer.model import build_model, params_sha256
from trainer.state import TrainState, build_optimizer
from trainer.step import Stepper

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
CONFIG = TrainConfig.model_validate(
    {"model": {"dim": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 48}}
)


@pytest.fixture(name="state")
def _state() -> Iterator[TrainState]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        model = build_model(CONFIG.model, CONFIG.loop, init_device_mesh("cpu", (1,)), CPU)
        yield TrainState(model, build_optimizer(model, CONFIG.optimizer), rank=0)
    finally:
        dist.destroy_process_group()


def train(state: TrainState, first: int, count: int) -> None:
    stepper = Stepper(CONFIG, state, CPU)
    for step in range(first, first + count):
        stepper.run(step, iter([torch.full((4, 17), step % 256)]))
        stepper.ended(blocked_s=0.0, saving=False)
        list(stepper.records(keep=0))


def objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def test_steps_leave_no_objects_behind(state: TrainState) -> None:
    """Reports: pytorch#188174, pytorch#181761 (an object a parameter and step), NeMo Automodel#2888.

    Of all that a step does; torch 2.13 passes it with its own AdamW too, which the next test excludes.
    """
    train(state, 1, 5)
    before = objects()
    train(state, 6, 30)
    parameters = len(list(state.model.parameters()))
    assert objects() - before < 30 * parameters / 4


class Seen(TorchDispatchMode):
    """What the fused kernel was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.arguments: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_fused_adamw_" in str(func):
            self.arguments += [tensor for part in args[:5] for tensor in part]
        return func(*args, **(kwargs or {}))


def test_the_fused_kernel_gets_plain_shards_and_the_state_stays_sharded(state: TrainState) -> None:
    before = params_sha256(state.model)
    train(state, 1, 1)
    with Seen() as seen:
        train(state, 2, 1)
    assert seen.arguments and not any(isinstance(tensor, DTensor) for tensor in seen.arguments)
    moments = [tensor for name, tensor in state.device_tensors().items() if name.endswith("exp_avg")]
    assert all(isinstance(moment, DTensor) and moment.to_local().any() for moment in moments)
    assert params_sha256(state.model) != before
