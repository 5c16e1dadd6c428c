"""Model, optimizer and RNG: exact beginnings, exact returns."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainer.config import LoopConfig, ModelConfig, OptimizerConfig, TrainConfig
from trainer.model import Decoder, build_model, flops_per_token, params_sha256
from trainer.state import TrainState, build_optimizer, learning_rate, seed_everything
from trainer.step import Stepper

pytestmark = pytest.mark.unit
CPU = torch.device("cpu")
SMALL = ModelConfig(dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=48)


def small(**changes: object) -> Decoder:
    return build_model(SMALL.model_copy(update=changes), LoopConfig(), None, CPU)


@pytest.mark.parametrize("tie", [False, True])
def test_parameters_are_counted_right(tie: bool) -> None:
    model = small(tie_embeddings=tie)
    expected = SMALL.model_copy(update={"tie_embeddings": tie}).num_params
    assert sum(p.numel() for p in model.parameters()) == expected


def test_a_token_does_not_see_the_future() -> None:
    model, tokens = small(), torch.randint(0, 256, (1, 16))
    changed = tokens.clone()
    changed[0, 10] += 1
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :10], after[0, :10])
    assert not torch.equal(before[0, 10:], after[0, 10:])


def test_positions_matter() -> None:
    model, tokens = small(), torch.tensor([[5, 5, 9, 5]])
    logits = model(tokens)
    assert not torch.allclose(logits[0, 0], logits[0, 3])


@pytest.mark.parametrize("changes", [{"activation_checkpointing": True}, {"compile": True}])
def test_options_do_not_change_the_gradient(changes: dict) -> None:
    tokens = torch.randint(0, 256, (2, 17))

    def gradient(loop: LoopConfig) -> torch.Tensor:
        model = build_model(SMALL, loop, None, CPU)
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        assert model.blocks[0].ffn.w1.weight.grad is not None  # type: ignore[union-attr]
        return model.blocks[0].ffn.w1.weight.grad  # type: ignore[union-attr]

    # inductor fuses, so its bits may differ; recomputation must not
    torch.testing.assert_close(gradient(LoopConfig(**changes)), gradient(LoopConfig()), rtol=1e-4, atol=1e-6)


def test_seed_and_name_decide_the_weights() -> None:
    assert params_sha256(small()) == params_sha256(small())
    other = build_model(SMALL, LoopConfig(seed=1), None, CPU)
    assert params_sha256(other) != params_sha256(small())


def test_hash_sees_a_single_bit() -> None:
    model = small()
    before = params_sha256(model)
    with torch.no_grad():
        model.norm.weight.view(torch.int32)[3] ^= 1
    assert params_sha256(model) != before


def test_flops_follow_the_published_count() -> None:
    gpt3 = ModelConfig(vocab_size=50257, dim=12288, num_layers=96, num_heads=96, num_kv_heads=96, ffn_dim=32768)
    assert flops_per_token(gpt3, 2048) == pytest.approx(6 * 174.0e9 + 12 * 96 * 12288 * 2048, rel=0.01)


def test_optimizer_state_is_zero_and_parameters_untouched() -> None:
    model = small()
    before = params_sha256(model)
    optimizer = build_optimizer(model, OptimizerConfig())
    assert params_sha256(model) == before
    assert len(optimizer.state) == sum(1 for _ in model.parameters())
    assert all(not value.any() for state in optimizer.state.values() for value in state.values())


def test_only_matrices_decay() -> None:
    decayed, kept = build_optimizer(small(), OptimizerConfig(weight_decay=0.3)).param_groups
    assert decayed["weight_decay"] == 0.3 and all(p.ndim == 2 for p in decayed["params"])
    assert kept["weight_decay"] == 0.0 and all(p.ndim == 1 for p in kept["params"])


def test_first_twenty_losses_equal_plain_torch() -> None:
    """Optimizer state made by a dummy step changes the training (pytorch#164929): compare with lazy AdamW."""
    config = TrainConfig(model=SMALL)
    generator = torch.Generator().manual_seed(7)
    data = [torch.randint(0, 256, (8, 17), generator=generator) for _ in range(20)]

    ours = small()
    state = TrainState(ours, build_optimizer(ours, config.optimizer), rank=0)
    stepper = Stepper(config, state, CPU)
    losses = []
    for step, tokens in enumerate(data, start=1):
        stepper.run(step, iter([tokens]))
        stepper.ended(blocked_s=0.0, saving=False)
        losses += [record.loss for record in stepper.records(keep=0)]

    assert losses == plain_losses(config, data)


def plain_losses(config: TrainConfig, data: list[torch.Tensor]) -> list[float]:
    model, settings = small(), config.optimizer
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=True)
    losses = []
    for step, tokens in enumerate(data, start=1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, settings)
        total = 0.0
        for micro in tokens.split(config.loop.micro_batch_size):
            loss = F.cross_entropy(model(micro[:, :-1]).flatten(0, 1).float(), micro[:, 1:].flatten())
            (loss * (len(micro) / len(tokens))).backward()
            total = total + (loss * (len(micro) / len(tokens))).detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total))
    return losses


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    config, model = TrainConfig(model=SMALL), small()
    state = TrainState(model, build_optimizer(model, config.optimizer), rank=0)
    stepper, tokens = Stepper(config, state, CPU), torch.randint(0, 256, (4, 17))
    stepper.run(1, iter([tokens]))
    before = {name: value.clone() for name, value in state.device_tensors().items()}
    stepper.poison = True
    stepper.run(2, iter([tokens]))
    stepper.ended(blocked_s=0.0, saving=False)
    assert [record.finite for record in stepper.records(keep=0)] == [True, False]
    assert all(torch.equal(before[name], value) for name, value in state.device_tensors().items())


def test_learning_rate_warms_up_and_decays_to_its_floor() -> None:
    settings = OptimizerConfig(lr=1.0, warmup_steps=10, decay_steps=110, min_lr_ratio=0.1)
    assert learning_rate(5, settings) == pytest.approx(0.5)
    assert learning_rate(10, settings) == pytest.approx(1.0)
    assert learning_rate(60, settings) == pytest.approx(0.55)
    assert learning_rate(110, settings) == learning_rate(5000, settings) == pytest.approx(0.1)


def draw() -> tuple[list[float], list[float], list[float]]:
    return torch.rand(4).tolist(), [random.random() for _ in range(4)], np.random.rand(4).tolist()


def test_every_generator_comes_back() -> None:
    model = small()
    state = TrainState(model, build_optimizer(model, OptimizerConfig()), rank=2)
    seed_everything(5, 2)
    draw()
    state.step = 17
    saved = {name: value.clone() for name, value in state.host_state().items()}
    expected = draw()
    seed_everything(99, 0)
    state.step = 0
    state.load_host_state(saved)
    assert draw() == expected and state.step == 17


def test_ranks_draw_differently() -> None:
    draws = []
    for rank in range(3):
        seed_everything(5, rank)
        draws.append(draw())
    assert draws[0] != draws[1] != draws[2] != draws[0]
