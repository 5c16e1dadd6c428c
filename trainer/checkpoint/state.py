"""The seam to training: what is saved, and whom the engine talks through.

`TrainState` implementations list tensors by name; `ModuleState` does it for any (model, optimizer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from trainer.checkpoint.records import Tier


class Control(Protocol):
    """What a (re)start provides: identity, a group and a store of its own."""

    rank: int
    world_size: int
    group: dist.ProcessGroup
    """gloo, of its own, with a timeout; for the few collectives at a start."""
    store: Store
    """Lies outside the ranks; its keys are unique to the attempt."""
    timeout_s: float


@dataclass(frozen=True)
class PlainControl:
    """A `Control` for scripts and tests that have a process group and a store already."""

    rank: int
    world_size: int
    group: dist.ProcessGroup
    store: Store
    timeout_s: float

    @classmethod
    def make(cls, store: Store, prefix: str, timeout_s: float = 60.0) -> PlainControl:
        """Collective over the default group. `prefix` must be new at each (re)start."""
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        assert isinstance(group, dist.ProcessGroup)
        return cls(dist.get_rank(), dist.get_world_size(), group, PrefixStore(prefix, store), timeout_s)


class Saveable(Protocol):
    """The training state. Names are those on disk; what differs between ranks has `.rank<r>.` in its name.

    If it has a `model` and an `optimizer`, `check_listed` sees to it that it lists all they have.
    """

    def device_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors where training lives; a DTensor, or a plain tensor that is equal on all ranks.

        What forward or backward change (running statistics, biases of a router) has a name that begins with
        `buffer.`; all else changes after `before_optimizer_step` only.
        """

    def host_state(self) -> dict[str, torch.Tensor]:
        """CPU tensors of fixed dtype and shape, copied when a snapshot is launched."""

    def load_host_state(self, values: dict[str, torch.Tensor]) -> None:
        """Take back what `host_state` gave. Names of this rank may be missing after a change of world size."""


@dataclass(frozen=True)
class Restored:
    """Where training goes on. `generation` is None for a fresh start."""

    attempt: int
    step: int
    generation: str | None
    tier: Tier


def is_ranked(fqn: str) -> bool:
    """Whether a name belongs to one rank."""
    return any(part.startswith("rank") and part[4:].isdigit() for part in fqn.split("."))


BUFFER_PREFIX = "buffer."


def is_buffer(fqn: str) -> bool:
    """Whether forward and backward may change a tensor of that name, not the optimizer alone."""
    return fqn.startswith(BUFFER_PREFIX)


@dataclass
class ModuleState:
    """The state of a model, its optimizer and a progress counter, for scripts without a state class of their own.

    `optimizer` must have its state already (zeros, not a dummy step: that changes weights, pytorch#164929).
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    rank: int
    step: Callable[[], int]
    set_step: Callable[[int], None]
    extra: dict[str, torch.Tensor] = field(default_factory=dict)
    """Further CPU tensors, saved and loaded in place."""

    def device_tensors(self) -> dict[str, torch.Tensor]:
        """See `Saveable`."""
        return {fqn: tensor for fqn, tensor in self._tensors() if not self._on_host(fqn, tensor)}

    def host_state(self) -> dict[str, torch.Tensor]:
        """See `Saveable`."""
        values = {fqn: tensor for fqn, tensor in self._tensors() if self._on_host(fqn, tensor)}
        values["progress.step"] = torch.tensor(self.step())
        values[f"rng.rank{self.rank}.cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            values[f"rng.rank{self.rank}.cuda"] = torch.cuda.get_rng_state()
        return {**values, **self.extra}

    def load_host_state(self, values: dict[str, torch.Tensor]) -> None:
        """See `Saveable`."""
        own = {fqn: tensor for fqn, tensor in self._tensors() if self._on_host(fqn, tensor)} | self.extra
        for fqn, tensor in own.items():
            tensor.copy_(values[fqn])
        self.set_step(int(values["progress.step"]))
        if (rng := values.get(f"rng.rank{self.rank}.cpu")) is not None:
            torch.set_rng_state(rng)
        if (rng := values.get(f"rng.rank{self.rank}.cuda")) is not None:
            torch.cuda.set_rng_state(rng)

    @staticmethod
    def _on_host(fqn: str, tensor: torch.Tensor) -> bool:
        """On the CPU, what the optimizer and the model mutate outside stream order: `step`, buffers."""
        return tensor.device.type == "cpu" and (fqn.endswith(".step") or is_buffer(fqn))

    def _tensors(self) -> Iterable[tuple[str, torch.Tensor]]:
        names: dict[torch.Tensor, str] = {p: name for name, p in self.model.named_parameters()}
        for parameter, name in names.items():
            yield f"model.{name}", parameter
        for name, buffer in persistent_buffers(self.model):
            yield f"{BUFFER_PREFIX}{name}", buffer
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                if not isinstance(value, torch.Tensor):
                    raise TypeError(f"optim.{names[parameter]}.{key} is a {type(value).__name__}, not a tensor")
                yield f"optim.{names[parameter]}.{key}", value


def persistent_buffers(model: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Buffers that a state dict would hold."""
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{prefix}.{name}" if prefix else name, buffer


def check_listed(state: Saveable) -> None:
    """Refuse a state that leaves out tensors of its own `model` and `optimizer`: a resumed run would differ.

    And one whose names hide a buffer from a snapshot that runs beside the next forward. Of a state without those
    two attributes nothing is known. Once a start: it looks at addresses only. Raises ValueError naming tensors.
    """
    model, optimizer = getattr(state, "model", None), getattr(state, "optimizer", None)
    if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        return
    if missing := unlisted(state, model, optimizer):
        raise ValueError(f"not listed, so no checkpoint would hold them: {', '.join(missing)}")
    buffers = {span for span in map(_span, model.buffers()) if span[0] < span[1]}
    tensors = state.device_tensors().items()
    if hidden := sorted(fqn for fqn, tensor in tensors if not is_buffer(fqn) and _span(tensor) in buffers):
        raise ValueError(f"buffers, whose names must begin with '{BUFFER_PREFIX}': {', '.join(hidden)}")


def unlisted(state: Saveable, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Tensors of model and optimizer that `state` does not save: by where they lie; on the host, also by name."""
    host = state.host_state()
    listed = {_span(tensor) for tensor in (*state.device_tensors().values(), *host.values())}
    return sorted(
        name
        for name, value in _everything(model, optimizer)
        if name not in host and not (isinstance(value, torch.Tensor) and _lies_in(value, listed))
    )


def _everything(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            names.setdefault(parameter, f"<parameter {place} of group {number}>")
    for parameter, name in names.items():
        yield f"model.{name}", parameter
    for name, buffer in persistent_buffers(model):
        yield f"{BUFFER_PREFIX}{name}", buffer
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            yield f"optim.{names[parameter]}.{key}", value


def _lies_in(tensor: torch.Tensor, spans: set[tuple[int, int]]) -> bool:
    """Whether it is listed, or part of what is: parameters may be views of a flat one."""
    span = start, end = _span(tensor)
    return not tensor.numel() or span in spans or any(a <= start and end <= b for a, b in spans)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of this rank's part."""
    from trainer.checkpoint.layout import local

    part = local(tensor)
    return part.data_ptr(), part.data_ptr() + part.nbytes
