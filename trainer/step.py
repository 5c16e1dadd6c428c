"""One optimizer step, and its record. No synchronisation on the training path: values are read a step late."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from trainer.config import TrainConfig
from trainer.state import TrainState, learning_rate


@dataclass(frozen=True)
class StepRecord:
    """What the ledger says of a step. Times are CLOCK_MONOTONIC seconds."""

    step: int
    start_s: float
    end_s: float
    tokens: int
    loss: float
    grad_norm: float
    finite: bool
    data_s: float
    blocked_s: float
    saving: bool


@dataclass
class _Pending:
    step: int
    start_s: float
    tokens: int
    data_s: float
    values: Tensor
    done: torch.cuda.Event | None
    end_s: float = 0.0
    blocked_s: float = 0.0
    saving: bool = False


class Stepper:
    """Runs steps and hands out their records as soon as their values have arrived."""

    def __init__(
        self,
        config: TrainConfig,
        state: TrainState,
        device: torch.device,
        before_update: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_update` runs before the optimizer changes the state that a save may still be copying."""
        self._config, self._state, self._device = config, state, device
        self._before_update = before_update
        self._pending: deque[_Pending] = deque()
        self._anchor = self._event()
        if self._anchor:
            self._anchor.synchronize()
        self._anchor_s = self._last_end_s = time.monotonic()
        self.poison = False
        """Set by a NaN fault: the next loss is not a number."""

    def run(self, step: int, batches: Iterator[Tensor]) -> None:
        """Forward, backward and update. `found_inf` makes fused AdamW leave out a step that is not finite."""
        start_s = time.monotonic()
        tokens = next(batches).to(self._device, non_blocking=True)
        data_s = time.monotonic() - start_s
        optimizer = self._state.optimizer
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, self._config.optimizer)
        loss = self._backward(tokens)
        norm = torch.nn.utils.clip_grad_norm_(self._state.model.parameters(), self._config.optimizer.clip_norm)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.found_inf = (~torch.isfinite(norm)).to(torch.float32)  # type: ignore[attr-defined]
        self._before_update()
        optimizer.step()
        optimizer.zero_grad()
        self._state.step = step
        values = torch.stack((loss, norm.detach().float())).to("cpu", non_blocking=True)
        self._pending.append(_Pending(step, start_s, tokens[:, 1:].numel(), data_s, values, self._event()))

    def _backward(self, tokens: Tensor) -> Tensor:
        micro_batches = tokens.split(self._config.loop.micro_batch_size)
        total = torch.zeros((), device=self._device)
        for number, micro in enumerate(micro_batches):
            if isinstance(self._state.model, FSDPModule):
                self._state.model.set_requires_gradient_sync(number == len(micro_batches) - 1)
            loss = cross_entropy(self._state.model, micro) * (len(micro) / len(tokens))
            if self.poison:
                loss, self.poison = loss * float("nan"), False
            loss.backward()
            total += loss.detach()
        return total

    def _event(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def ended(self, *, blocked_s: float, saving: bool) -> None:
        """Close the newest step: what comes after is not its time."""
        newest = self._pending[-1]
        newest.end_s, newest.blocked_s, newest.saving = time.monotonic(), blocked_s, saving

    def newest_grad_norm(self) -> float:
        """Of the step just run; waits for it."""
        newest = self._pending[-1]
        if newest.done is not None:
            newest.done.synchronize()
        return float(newest.values[1])

    def records(self, *, keep: int) -> Iterator[StepRecord]:
        """Records of closed steps, waiting for the values of all but the newest `keep`.

        With `keep=1` the host is at most a step ahead of the GPU. On CPU nothing is ever outstanding.
        """
        keep = keep if self._device.type == "cuda" else 0
        while len(self._pending) > keep:
            yield self._record(self._pending.popleft())

    def _record(self, pending: _Pending) -> StepRecord:
        start_s, end_s = pending.start_s, pending.end_s
        if pending.done is not None and self._anchor is not None:
            # The host launches ahead of the GPU: the step's time is the GPU's, on the host's clock.
            pending.done.synchronize()
            end_s = self._anchor_s + self._anchor.elapsed_time(pending.done) / 1e3
            start_s = max(min(start_s, end_s), self._last_end_s)
        self._last_end_s = end_s
        loss, grad_norm = pending.values.tolist()
        return StepRecord(
            step=pending.step,
            start_s=start_s,
            end_s=end_s,
            tokens=pending.tokens,
            loss=loss,
            grad_norm=grad_norm,
            finite=math.isfinite(loss) and math.isfinite(grad_norm),
            data_s=pending.data_s,
            blocked_s=pending.blocked_s,
            saving=pending.saving,
        )


def cross_entropy(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """Mean next-token loss in fp32 of (batch, length + 1) tokens."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@torch.no_grad()
def evaluate(model: torch.nn.Module, batches: Iterator[Tensor], device: torch.device) -> Tensor:
    """Mean loss of this rank over `batches` of the held-out part, as a scalar tensor."""
    model.eval()
    losses = [cross_entropy(model, tokens.to(device, non_blocking=True)) for tokens in batches]
    model.train()
    # Without a backward pass the root's parameters stay gathered: a save right after would not find its shards.
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return torch.stack(losses).mean()
