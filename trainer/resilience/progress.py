"""Whether restarts bring anything, and the record that says that the run is complete."""

from __future__ import annotations

import json
import logging
from itertools import takewhile
from typing import Any

from trainer.events import Event, json_lines, read_ledger
from trainer.files import write_durably, write_whole
from trainer.paths import RunPaths

log = logging.getLogger(__name__)


class Starts:
    """What rank 0 notes of the starts of one submission, one JSON line each, in order.

    Of one submission: a run that a person resumes has every try again, whatever it ended with before.
    """

    def __init__(self, paths: RunPaths, submission: int) -> None:
        self._path = paths.starts(submission)

    def begun(self) -> None:
        """A process of rank 0 begins; an attempt may follow."""
        self._note(begun=1)

    def begun_in_a_row(self) -> int:
        """How many processes of rank 0 have begun since an attempt was opened last."""
        return sum(1 for _ in takewhile(lambda note: "begun" in note, reversed(self._notes())))

    def opened(self, attempt: int, step: int) -> None:
        """Attempt `attempt` begins after `step`."""
        self._note(opened=attempt, step=step)

    def attempts_in_a_row(self, attempt: int, step: int) -> int:
        """How many attempts in a row, `attempt` the newest of them, began after this step.

        The same on all ranks, whether or not rank 0 has noted `attempt` already.
        """
        steps = [note.get("step") for note in self._notes() if note.get("opened", attempt) != attempt]
        return 1 + sum(1 for _ in takewhile(lambda other: other == step, reversed(steps)))

    def unsaved(self, step: int) -> None:
        """The last save, the target's, has failed."""
        self._note(unsaved=step)

    def failed_last_saves(self, step: int) -> int:
        """How often the last save, that of `step`, has failed."""
        return sum(note.get("unsaved") == step for note in self._notes())

    def _note(self, **fields: int) -> None:
        """Append. A note that is lost makes a loop longer; an error here would end a run that could go on."""
        line = json.dumps(fields).encode() + b"\n"
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            log.warning("a start is not counted: %s", error)

    def _notes(self) -> list[dict[str, Any]]:
        try:
            return list(json_lines(self._path))
        except OSError:
            return []


def recorded_loss(paths: RunPaths, step: int, world_size: int) -> float | None:
    """Mean loss of a step that earlier attempts did, each rank's newest; None where a rank has written none."""
    done = [r for r in read_ledger(paths.events) if r.get("event") == Event.STEP and r.get("step") == step]
    newest = {record["rank"]: float(record["loss"]) for record in sorted(done, key=lambda r: r["wall_s"])}
    if sorted(newest) != list(range(world_size)):
        return None
    return sum(newest[rank] for rank in range(world_size)) / world_size


def saved_step(paths: RunPaths) -> int:
    """The step after which a start goes on, as far as `progress` tells."""
    try:
        return int(paths.progress.read_text())
    except (OSError, ValueError):
        return 0


def restored(paths: RunPaths, step: int) -> None:
    """A start goes on after `step`, which is progress, also when only memory had it: commits alone would make
    ft_launcher end a run that advances."""
    if step > saved_step(paths):
        tell_launcher(paths, step)


def tell_launcher(paths: RunPaths, step: int) -> None:
    """For ft_launcher's no-progress rule. A note that is lost costs no more than that rule's patience.

    So it is not synced: the thread that writes it also brings the decisions to the other ranks, and storage that
    takes long over an fsync would make rank 0 seem silent.
    """
    try:
        write_whole(paths.progress, str(step).encode())
    except OSError as error:
        log.warning("ft_launcher is not told of step %d: %s", step, error)


def write_completion(paths: RunPaths, values: dict[str, Any]) -> None:
    """Atomically; a pod exits 0 only because of this file. Raises OSError."""
    write_durably(paths.completion, json.dumps(values).encode())


def completed_step(paths: RunPaths) -> int | None:
    """The step that the completion record states, or None."""
    try:
        return int(json.loads(paths.completion.read_text())["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("%s says nothing: %r", paths.completion, error)
        return None
