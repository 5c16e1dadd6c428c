"""The demo's input: whole, deterministic, with a part held out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ops import data

pytestmark = pytest.mark.unit


def tokens(part: Path) -> bytes:
    index = json.loads((part / "index.json").read_text())
    shards = [np.memmap(part / shard["file"], dtype=index["dtype"], mode="r") for shard in index["shards"]]
    return np.concatenate(shards).astype(np.uint8).tobytes()


def test_enough_real_text_and_a_part_held_out(tmp_path: Path) -> None:
    made = data.prepare(tmp_path)
    assert made.train_tokens >= 5_000_000
    assert made.eval_tokens >= 50_000
    train, held_out = tokens(tmp_path / "train"), tokens(tmp_path / "eval")
    assert (len(train), len(held_out)) == (made.train_tokens, made.eval_tokens)
    assert b"import " in train
    assert held_out[:2000] not in train
    again = data.prepare(tmp_path)
    assert again == data.Prepared(made.train_tokens, made.eval_tokens, reused=True)


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "index"])
def test_a_damaged_part_is_made_again(tmp_path: Path, harm: str) -> None:
    data.write_part(tmp_path / "train", [b"a" * 1000])
    data.write_part(tmp_path / "eval", [b"b" * 1000])
    assert data.prepare(tmp_path).reused
    shard = tmp_path / "train" / "shard-00000.bin"
    if harm == "flip":
        content = bytearray(shard.read_bytes())
        content[7] ^= 1
        shard.write_bytes(content)
    elif harm == "truncate":
        shard.write_bytes(shard.read_bytes()[:-2])
    elif harm == "remove":
        shard.unlink()
    else:
        (tmp_path / "train" / "index.json").write_text("{")
    assert not data.prepare(tmp_path).reused


def test_shards_hold_the_text_in_order_and_nothing_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "SHARD_TOKENS", 10)
    assert data.write_part(tmp_path / "train", [b"0123456", b"789abcdefghij", b"klm"]) == 23
    assert tokens(tmp_path / "train") == b"0123456789abcdefghijklm"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    def broken() -> object:
        yield b"new"
        raise OSError("disk full")

    data.write_part(tmp_path / "train", [b"old"])
    with pytest.raises(OSError, match="disk full"):
        data.write_part(tmp_path / "train", broken())  # type: ignore[arg-type]
    assert tokens(tmp_path / "train") == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train"]
