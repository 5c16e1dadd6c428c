"""What NVRx 0.7.0's own checkpoint writer needs where there is no GPU. Used by `writer: nvrx` alone."""

from __future__ import annotations

import torch


def without_cuda() -> None:
    """It asks `torch.cuda.current_device()` where its one-integer collectives belong (core.py:210, 289)."""
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
