"""The training configuration."""

import pytest
from pydantic import ValidationError

from trainer.config import ModelConfig, TrainConfig, parse_interval, resume_differences

pytestmark = pytest.mark.unit


def config(**sections: dict) -> TrainConfig:
    return TrainConfig.model_validate(sections)


def test_unknown_key_is_refused_and_named() -> None:
    with pytest.raises(ValidationError, match=r"loop\.stepz"):
        config(loop={"stepz": 3})


def test_several_problems_come_together() -> None:
    with pytest.raises(ValidationError) as caught:
        config(model={"dim": 100, "num_heads": 3}, checkpoint={"keep": 1}, loop={"steps": "many"})
    assert {error["loc"][0] for error in caught.value.errors()} == {"model", "checkpoint", "loop"}


@pytest.mark.parametrize(
    ("text", "expected"), [(10, (10, None)), ("10", (10, None)), ("2.5s", (None, 2.5)), ("auto", (None, None))]
)
def test_interval(text: str | int, expected: tuple) -> None:
    assert parse_interval(text) == expected


@pytest.mark.parametrize("text", ["10m", "s", "-3", "often", 0])
def test_interval_refused(text: str | int) -> None:
    with pytest.raises(ValidationError):
        config(checkpoint={"persist_every": text})


def test_target_may_only_grow() -> None:
    before = config(loop={"steps": 50})
    assert resume_differences(before, config(loop={"steps": 60})) == []
    (problem,) = resume_differences(before, config(loop={"steps": 40}))
    assert "loop.steps" in problem and "50" in problem


def test_a_resumed_run_keeps_everything_else() -> None:
    problems = resume_differences(config(), config(model={"dim": 64}, optimizer={"lr": 1e-4}))
    assert [problem.split(":")[0] for problem in problems] == ["model.dim", "optimizer.lr"]


def test_batch_must_divide_over_ranks_and_micro_batches() -> None:
    assert config(data={"global_batch_size": 16}, loop={"micro_batch_size": 4}).share(2) == (8, 2)
    with pytest.raises(ValueError, match="multiple of the 3 ranks"):
        config(data={"global_batch_size": 16}).share(3)
    with pytest.raises(ValueError, match="micro_batch_size 3"):
        config(data={"global_batch_size": 16}, loop={"micro_batch_size": 3}).share(2)


def test_eight_billion() -> None:
    llama = ModelConfig(vocab_size=128256, dim=4096, num_layers=32, num_heads=32, num_kv_heads=8, ffn_dim=14336)
    assert llama.num_params == 8_030_261_248  # the published count of Llama 3 8B
