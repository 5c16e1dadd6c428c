"""Loader processes change when batches are read, not which."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.config import DataConfig
from trainer.data import batches

pytestmark = pytest.mark.integration


def test_workers_give_the_same_batches(tmp_path: Path) -> None:
    np.arange(5000, dtype=np.uint16).tofile(tmp_path / "0.bin")
    shard = {"file": "0.bin", "tokens": 5000, "sha256": ""}
    (tmp_path / "index.json").write_text(json.dumps({"dtype": "uint16", "vocab_size": 5000, "shards": [shard]}))
    alone, helped = (
        list(
            batches(
                tmp_path,
                DataConfig(sequence_length=8, global_batch_size=4, num_workers=num_workers),
                rank=1,
                world_size=2,
                first_step=7,
                last_step=20,
            )
        )
        for num_workers in (0, 2)
    )
    assert len(helped) == 14 and all(torch.equal(a, b) for a, b in zip(alone, helped, strict=True))
