"""What is saved, where, how it is committed, verified, found again, pruned. See docs/checkpoints.md.

The names below are the seam to the training loop. They are imported on first use, so that the writer process and
the command line can read `trainer.checkpoint.records` without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.checkpoint.arena import ArenaError
    from trainer.checkpoint.engine import CheckpointEngine, SavesFailingError
    from trainer.checkpoint.reading import MismatchError
    from trainer.checkpoint.restore import NothingLoadableError
    from trainer.checkpoint.state import Control, ModuleState, PlainControl, Restored, Saveable, unlisted

__all__ = [
    "ArenaError",
    "CheckpointEngine",
    "Control",
    "MismatchError",
    "ModuleState",
    "NothingLoadableError",
    "PlainControl",
    "Restored",
    "Saveable",
    "SavesFailingError",
    "unlisted",
]

_HOME = {
    "ArenaError": "arena",
    "CheckpointEngine": "engine",
    "SavesFailingError": "engine",
    "MismatchError": "reading",
    "NothingLoadableError": "restore",
    "Control": "state",
    "ModuleState": "state",
    "PlainControl": "state",
    "Restored": "state",
    "Saveable": "state",
    "unlisted": "state",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
