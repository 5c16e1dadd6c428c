"""Whether restarts bring anything, and the record that says that the run is complete."""

from __future__ import annotations

import json
from typing import Any

from trainer.events import Event, read_ledger
from trainer.files import write_durably
from trainer.paths import RunPaths


def attempts_without_progress(paths: RunPaths) -> int:
    """How many of the newest attempts in a row began at the same step, the current one included."""
    starts = {}
    for path in paths.attempts.glob("*.json"):
        if path.stem.isdigit():
            starts[int(path.stem)] = json.loads(path.read_text())["step"]
    newest_first = [starts[number] for number in sorted(starts, reverse=True)]
    count = 0
    for step in newest_first:
        if step != newest_first[0]:
            break
        count += 1
    return count


def last_error(paths: RunPaths) -> str:
    """Step, rank and words of the error that ended the newest attempt: its first, the others follow from it."""
    errors = [
        record
        for record in read_ledger(paths.events)
        if record["event"] == Event.INTERRUPTED and record.get("step") is not None
    ]
    if not errors:
        return "none was written (the process was killed)"
    newest = max(errors, key=lambda record: record["wall_s"])
    if newest.get("attempt") is None:  # before an attempt was opened: nothing tells starts apart
        together = [newest]
    else:
        together = [record for record in errors if record.get("attempt") == newest["attempt"]]
    first = min(together, key=lambda record: record["wall_s"])
    return f"step {first['step']}, rank {first['rank']}: {first['detail']}"


def write_completion(paths: RunPaths, values: dict[str, Any]) -> None:
    """Atomically; a pod exits 0 only because of this file. Raises OSError."""
    write_durably(paths.completion, json.dumps(values).encode())


def completed_step(paths: RunPaths) -> int | None:
    """The step that the completion record states, or None."""
    try:
        return int(json.loads(paths.completion.read_text())["step"])
    except (OSError, ValueError, KeyError):
        return None
