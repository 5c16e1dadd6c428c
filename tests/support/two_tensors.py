"""The smallest state that stagers treat in both of their ways: a weight and a buffer, of equal length."""

from __future__ import annotations

import torch

from trainer.checkpoint.layout import Item, Layout, Part

NAMES = ("model.w", "buffer.mean")


def two_tensors(length: int) -> Layout:
    """Of float32, one behind the other, on one rank; without headers, since nothing here reads a file."""
    size_bytes = 4 * length
    items = tuple(
        Item(name, (0,), (length,), torch.float32, at * size_bytes, True, Part.OWN)
        for at, name in enumerate(NAMES)
    )
    end = size_bytes * len(NAMES)
    return Layout(0, 1, items, (), [0, end, end, end, end], "digest", None, b"")  # type: ignore[arg-type]
