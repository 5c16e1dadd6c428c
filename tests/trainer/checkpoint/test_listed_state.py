"""What is asked of a state class before anything is saved: that it lists all that its model and optimizer have."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.checkpoint import engine
from trainer.checkpoint.state import ModuleState, check_listed

pytestmark = pytest.mark.unit

Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


class Listed(ModuleState):
    """As a user's class: what it lists is changed."""

    on_device: Change = staticmethod(lambda tensors: tensors)
    on_host: Change = staticmethod(lambda tensors: tensors)

    def device_tensors(self) -> dict[str, torch.Tensor]:
        return self.on_device(super().device_tensors())

    def host_state(self) -> dict[str, torch.Tensor]:
        return self.on_host(super().host_state())


def make_state(kind: type[ModuleState] = Listed) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter)}
    return kind(model, optimizer, 0, lambda: 0, lambda step: None)


def without(*parts: str) -> Change:
    return lambda tensors: {k: v for k, v in tensors.items() if not any(part in k for part in parts)}


def test_a_state_that_lists_everything_is_taken() -> None:
    check_listed(make_state(ModuleState))


@pytest.mark.parametrize("name", ["model.0.weight", "optim.1.bias.exp_avg"])
def test_a_device_tensor_that_is_not_listed_is_named(name: str) -> None:
    state = make_state()
    state.on_device = without(name)
    with pytest.raises(ValueError, match=rf"not listed.*: {name}$"):
        check_listed(state)


@pytest.mark.parametrize("name", ["buffer.1.running_mean", "optim.0.weight.step"])
def test_a_host_tensor_that_is_not_listed_is_named(name: str) -> None:
    state = make_state()
    state.on_host = without(name)
    with pytest.raises(ValueError, match=rf"not listed.*: {name}$"):
        check_listed(state)


def test_host_values_may_be_made_anew_under_their_names() -> None:
    state = make_state()
    state.on_host = lambda tensors: {name: tensor.clone() for name, tensor in tensors.items()}
    check_listed(state)


def test_a_device_tensor_that_is_made_anew_is_not_the_state() -> None:
    state = make_state()
    state.on_device = lambda tensors: {**tensors, "model.0.bias": tensors["model.0.bias"].clone()}
    with pytest.raises(ValueError, match=r"model\.0\.bias$"):
        check_listed(state)


def test_a_parameter_of_the_optimizer_alone_is_named() -> None:
    """A temperature that is learned beside the model."""
    state = make_state()
    state.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with pytest.raises(ValueError, match=r"model\.<parameter 0 of group 1>"):
        check_listed(state)


def test_a_host_scalar_in_the_optimizer_is_named() -> None:
    state = make_state()
    tensors, values = state.device_tensors(), state.host_state()
    state.optimizer.state[state.model[0].bias]["warm"] = 3
    state.device_tensors, state.host_state = lambda: tensors, lambda: values
    with pytest.raises(ValueError, match=r"optim\.0\.bias\.warm"):
        check_listed(state)


def test_views_of_a_flat_tensor_that_is_listed_are_listed() -> None:
    state = make_state()
    flat = torch.zeros(6)
    weight, bias = state.model[0].weight, state.model[0].bias
    weight.data, bias.data = flat[:4].view(2, 2), flat[4:]
    state.on_device = lambda tensors: {**without("model.0")(tensors), "model.0.flat": flat}
    check_listed(state)


def test_a_buffer_under_another_name_is_refused() -> None:
    """The host stager would copy it beside the forward that changes it."""
    state = make_state()
    mean = state.model[1].running_mean
    state.on_device = lambda tensors: {**tensors, "model.1.running_mean": mean}
    with pytest.raises(ValueError, match=r"must begin with 'buffer\.': model\.1\.running_mean"):
        check_listed(state)


def test_of_a_state_without_a_model_nothing_is_asked() -> None:
    check_listed(SimpleNamespace(device_tensors=dict, host_state=dict))  # type: ignore[arg-type]


def test_what_one_rank_leaves_out_ends_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second rank's state is whole; it must not wait for the first until a timeout."""
    said: list[str] = []

    def gather(problem: str, group: Any) -> list[str]:
        said.append(problem)
        return [said[0], problem]

    monkeypatch.setattr(engine, "gather", gather)
    torn, whole = make_state(), make_state()
    torn.on_device = without("model.0.weight")
    for state in (torn, whole):
        with pytest.raises(ValueError, match=r"rank 0: not listed.*model\.0\.weight"):
            engine.refuse_unlisted(state, None)  # type: ignore[arg-type]
    assert said[1] == ""
