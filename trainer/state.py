"""Model, optimizer and RNG as named tensors: what a checkpoint holds and a restart gets back exactly."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from typing_extensions import override

from trainer.checkpoint.layout import local
from trainer.config import OptimizerConfig
from trainer.model import Decoder


class ShardAdamW(torch.optim.AdamW):
    """Fused AdamW that is given this rank's shards as plain tensors: elementwise, so the result is the same.

    Through DTensor's dispatch, torch 2.10 and 2.11 keep an object a parameter of every step (pytorch#188174,
    #181761): the host's memory runs full, and every full collection takes longer than the one before.
    Its state must be there before the first step (`build_optimizer`).
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)

    @override
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; none if `found_inf` is set to 1."""
        assert closure is None, "the loss is not computed here"
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self.state[parameter] for parameter in parameters]
            beta1, beta2 = group["betas"]
            adamw(
                [local(parameter) for parameter in parameters],
                [local(parameter.grad) for parameter in parameters],
                [local(state["exp_avg"]) for state in states],
                [local(state["exp_avg_sq"]) for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                found_inf=getattr(self, "found_inf", None),
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> ShardAdamW:
    """Fused AdamW with its state made at once, exactly zero.

    Made here and not by `get_state_dict`, which takes a dummy step on a fresh optimizer and so changes the
    training (pytorch#164929).
    """
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = ShardAdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameter, requires_grad=False),
        }
    return optimizer


def learning_rate(step: int, config: OptimizerConfig) -> float:
    """Linear warm-up, then a cosine to `min_lr_ratio` at `decay_steps` (SGDR, arXiv:1608.03983, eq. 5)."""
    if step <= config.warmup_steps:
        return config.lr * step / max(1, config.warmup_steps)
    done = min(1.0, (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps))
    cosine = 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * cosine)


class TrainState:
    """Everything that makes the next step what it is (`trainer.checkpoint.Saveable`).

    The data position and the learning rate are functions of the step, so the step stands for them.
    """

    def __init__(self, model: Decoder, optimizer: torch.optim.Optimizer, rank: int) -> None:
        self.model, self.optimizer, self.rank = model, optimizer, rank
        self.step = 0

    def device_tensors(self) -> dict[str, Tensor]:
        """Parameters and moments under their full names; the storages the optimizer writes to."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            tensors[f"model.{name}"] = parameter.detach()
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"optim.{name}.{key}"] = value
        for name, buffer in self.model.named_buffers():
            tensors[f"buffer.{name}"] = buffer
        return tensors

    def host_state(self) -> dict[str, Tensor]:
        """Fixed-size CPU tensors, copied by the caller before training goes on."""
        rank = f"rng.rank{self.rank}"
        return {
            "progress.step": torch.tensor(self.step, dtype=torch.int64),
            f"{rank}.torch": torch.get_rng_state(),
            f"{rank}.cuda": torch.cuda.get_rng_state()
            if torch.cuda.is_available()
            else torch.zeros(16, dtype=torch.uint8),
            f"{rank}.python": _python_rng(),
            f"{rank}.numpy": _numpy_rng(),
        }

    def load_host_state(self, values: dict[str, Tensor]) -> None:
        """Restore step and this rank's RNG; a rank the checkpoint did not have keeps its seeded RNG."""
        self.step = int(values["progress.step"])
        rank = f"rng.rank{self.rank}"
        if f"{rank}.torch" not in values:
            return
        torch.set_rng_state(values[f"{rank}.torch"])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state(values[f"{rank}.cuda"])
        _set_python_rng(values[f"{rank}.python"])
        _set_numpy_rng(values[f"{rank}.numpy"])


def seed_everything(seed: int, rank: int) -> None:
    """A stream of its own for every rank and every generator."""
    value = (seed * 1_000_003 + rank) % 2**31
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


def _python_rng() -> Tensor:
    return torch.tensor(random.getstate()[1], dtype=torch.int64)


def _set_python_rng(value: Tensor) -> None:
    random.setstate((3, tuple(value.tolist()), None))


def _numpy_rng() -> Tensor:
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    words = np.asarray(keys, dtype=np.float64)
    return torch.tensor([float(position), float(has_gauss), float(cached), *words], dtype=torch.float64)


def _set_numpy_rng(value: Tensor) -> None:
    position, has_gauss, cached, *keys = value.tolist()
    words = np.array(keys, dtype=np.uint32)
    np.random.set_state(("MT19937", words, int(position), int(has_gauss), cached))
