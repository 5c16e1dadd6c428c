"""What an attempt leaves behind in its thread when it is ended half way out of a `with`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.resilience import in_process
from trainer.resilience.thread_state import renew_thread_state

pytestmark = pytest.mark.unit


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


LEFT: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "device": lambda: torch.device("meta"),
    "dispatch": Counting,
    "hooks": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.sum(), lambda _: torch.zeros(9)
    ),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.fixture(autouse=True)
def _afterwards() -> Iterator[None]:
    yield
    renew_thread_state()


def gradient() -> torch.Tensor:
    """Of a small product: what training needs of its thread."""
    weight = torch.ones(3, 3, requires_grad=True)
    (weight @ weight).sum().backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("name", LEFT)
def test_a_context_that_was_never_left_does_not_reach_the_next_attempt(name: str) -> None:
    expected = gradient()
    LEFT[name]().__enter__()
    renew_thread_state()
    found = gradient()
    assert found.dtype == torch.float32 and torch.equal(found, expected)
    assert not torch.is_autocast_enabled("cpu") and torch.empty(1).device.type == "cpu"


def test_every_call_of_the_wrapped_function_has_a_fresh_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRx's part is left out: what it would call again and again is called here."""
    seen: list[bool] = []
    monkeypatch.setattr(in_process, "Wrapper", lambda **_: lambda function: function)
    settings: Any = type("Timeouts", (), dict.fromkeys(("start_s", "soft_s", "hard_s", "barrier_s"), 1.0))
    call = in_process.wrap(
        lambda _: seen.append(torch.is_grad_enabled()),
        timeouts=settings,
        world_size=1,
        on_fault=lambda _: None,
        on_release=lambda _: None,
    )
    torch.set_grad_enabled(False)
    call()
    assert seen == [True]
