"""Batches: a function of seed, step and global index."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import DataConfig
from trainer.data import Samples, TokenShards, batches, permute, rank_slice

pytestmark = pytest.mark.unit


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """1,000 tokens in three shards, token i = i % 256."""
    entries, start = [], 0
    for number, count in enumerate((333, 600, 67)):
        tokens = (np.arange(start, start + count) % 256).astype(np.uint16)
        tokens.tofile(tmp_path / f"{number}.bin")
        entries.append({"file": f"{number}.bin", "tokens": count, "sha256": ""})
        start += count
    description = {"dtype": "uint16", "vocab_size": 256, "shards": entries}
    (tmp_path / "index.json").write_text(json.dumps(description))
    return tmp_path


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_permutation_is_one(count: int, key: int) -> None:
    assert sorted(permute(index, count, key) for index in range(count)) == list(range(count))


def test_permutation_depends_on_key() -> None:
    assert [permute(i, 100, 1) for i in range(100)] != [permute(i, 100, 2) for i in range(100)]


@given(st.integers(1, 50), st.sampled_from([1, 2, 3, 4, 6]))
def test_ranks_share_a_batch_without_rest(step: int, world_size: int) -> None:
    together = [i for rank in range(world_size) for i in rank_slice(step, 12, rank, world_size)]
    assert together == rank_slice(step, 12, 0, 1)


def test_reads_across_shards(split: Path) -> None:
    tokens = TokenShards(split).read(330, 610)
    assert tokens.tolist() == [i % 256 for i in range(330, 940)]


def test_short_shard_is_named(split: Path) -> None:
    (split / "1.bin").write_bytes(b"xx")
    with pytest.raises(ValueError, match=r"1\.bin: 2 bytes"):
        TokenShards(split)


def test_an_epoch_sees_every_window_once_and_the_next_in_another_order(split: Path) -> None:
    samples = Samples(split, 9, seed=3)
    first, second = (
        [samples[epoch * samples.windows + i][0].item() for i in range(samples.windows)] for epoch in (0, 1)
    )
    assert sorted(first) == sorted(second) and first != second


def test_a_window_longer_than_the_split_is_refused(split: Path) -> None:
    with pytest.raises(ValueError, match="1000 tokens, a sample needs 2001"):
        Samples(split, 2000, seed=0)


def test_resuming_gives_the_batches_that_would_have_come(split: Path) -> None:
    config = DataConfig(sequence_length=8, global_batch_size=4)
    whole = list(batches(split, config, rank=1, world_size=2, first_step=1, last_step=30))
    rest = list(batches(split, config, rank=1, world_size=2, first_step=18, last_step=30))
    assert len(rest) == 13 and all(torch.equal(a, b) for a, b in zip(whole[17:], rest, strict=True))
