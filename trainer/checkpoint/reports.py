"""What a writer process tells its trainer: small files in shared memory, so a full disk silences nobody.

`<outcome>.<phase>` appears by a rename once the phase is over; the trainer looks for it. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path


class Phase(StrEnum):
    """How far a save has come. The slot may be filled again once it is written."""

    HASHED = "hashed"
    WRITTEN = "written"
    COMMITTED = "committed"
    DONE = "done"


@dataclass(frozen=True)
class Outcome:
    """Result of a phase; times are durations but for `end_s` (CLOCK_MONOTONIC)."""

    ok: bool
    error: str = ""
    bytes: int = 0
    checksum_s: float = 0.0
    write_s: float = 0.0
    fsync_s: float = 0.0
    commit_s: float = 0.0
    committed_bytes: int = 0
    end_s: float = 0.0
    pruned: list[str] = field(default_factory=list)


def report(outcome: Path, phase: Phase, result: Outcome) -> None:
    """Called in the writer."""
    temporary = outcome.with_name(f"{outcome.name}.{phase}.tmp")
    temporary.write_text(json.dumps(asdict(result)))
    temporary.rename(outcome.with_name(f"{outcome.name}.{phase}"))


def poll(outcome: Path, phase: Phase) -> Outcome | None:
    """Called in the trainer."""
    try:
        text = outcome.with_name(f"{outcome.name}.{phase}").read_text()
    except FileNotFoundError:
        return None
    return Outcome(**json.loads(text))


def news(outcome: Path, known: Collection[Phase]) -> dict[Phase, Outcome]:
    """What has been reported beyond that, in order. Called in the trainer.

    The last phase is looked for first: a writer may report two between two looks, and one that is there has its
    predecessors beside it. Hashing is another lane's, so the end counts only with it.
    """
    looks = {phase: poll(outcome, phase) for phase in reversed(Phase) if phase not in known}
    if Phase.HASHED not in known and looks[Phase.HASHED] is None:
        looks[Phase.DONE] = None  # the other lane still reads the slot
    return {phase: found for phase in Phase if (found := looks.get(phase)) is not None}


def clear(outcome: Path) -> None:
    """Remove every trace of a save."""
    for path in outcome.parent.glob(f"{outcome.name}.*"):
        path.unlink(missing_ok=True)
