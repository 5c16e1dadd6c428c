"""A generation of four ranks in the hands of one, two, three and eight, and of torch's own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load

from trainer.checkpoint.verify import verify_generation

pytestmark = pytest.mark.integration

WIDTH = 256
LOSS_TOLERANCE = 1e-5
"""Relative. The same samples, summed in another order: fp32 gives 1e-7 a sum, two steps of AdamW spread it."""


@pytest.fixture(name="saved", scope="module")
def _saved(module_run: Any, make_tokens: Any) -> Any:
    """Four ranks save step 2 and go on to step 4."""
    orders: list[list[Any]] = [["start"], ["train", 2], ["finish"], ["train", 4]]
    ranks = module_run.run(*orders, ranks=4, **_options(make_tokens))
    assert ranks.codes == [0] * 4, ranks.heard
    return ranks


def _options(make_tokens: Any) -> dict[str, Any]:
    return {"width": WIDTH, "data": str(make_tokens(WIDTH))}


@pytest.fixture(name="directory", scope="module")
def _directory(saved: Any, module_run: Any) -> Path:
    return Path(module_run.paths.checkpoints) / "step-00000002.1"


def test_ranks_share_the_bytes_evenly(directory: Path) -> None:
    """pytorch#125740, composer PR#3271: replicated tensors all went into one rank's file."""
    assert not verify_generation(directory)
    sizes = [path.stat().st_size for path in directory.glob("*.distcp")]
    assert len(sizes) == 4 and max(sizes) <= 1.1 * min(sizes)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_saved_at_four_loads_at_another_number(
    saved: Any, directory: Path, module_run: Any, make_tokens: Any, ranks: int
) -> None:
    """Equal state, the same samples in the same order, and a loss within LOSS_TOLERANCE; pytorch PR#193909 (all
    ranks read the same bytes), prime-rl PR#3332, torchft#309 (data from the beginning, or a batch behind)."""
    orders: list[list[Any]] = [["start"], ["train", 4]]
    loaded = module_run.run(*orders, ranks=ranks, config={"writer": "sync"}, **_options(make_tokens))
    assert loaded.one("open", "generation") == directory.name
    assert loaded.one("open", "state") == next(s["state"] for s in saved.all("trained") if s["step"] == 2)
    expected = {said["step"]: said for said in saved.all("step") if said["rank"] == 0}
    for said in loaded.all("step"):
        assert said["samples"] == expected[said["step"]]["samples"]
        assert said["loss"] == pytest.approx(expected[said["step"]]["loss"], rel=LOSS_TOLERANCE)
    assert {said["step"] for said in loaded.all("step")} == {3, 4}
    stored = sum(path.stat().st_size for path in directory.glob("*.distcp"))
    read = sum(event["bytes"] for event in module_run.events("restored")[-ranks:])
    assert read <= 2.1 * stored, read / stored


def test_other_tools_read_a_generation(directory: Path, tmp_path: Path) -> None:
    dcp_to_torch_save(directory, tmp_path / "all.pt")
    whole = torch.load(tmp_path / "all.pt", weights_only=True)
    assert whole["progress.step"] == 2 and whole["model.0.weight"].shape == (WIDTH, WIDTH)
    again = {"model.1.bias": torch.zeros(WIDTH), "rng.rank3.cpu": torch.zeros_like(whole["rng.rank3.cpu"])}
    load(again, storage_reader=FileSystemReader(directory), no_dist=True)
    assert torch.equal(again["model.1.bias"], whole["model.1.bias"])
