"""What a rank leaves for `trainer.launch` before it ends the job: ranks' own exit codes do not pass ft_launcher.

A verdict is a file in the run directory, with a copy in the pod's shared memory for when storage is the trouble.
`trainer.launch` believes a verdict only if it is younger than its own start, by the clock of the file system.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.exit_codes import ExitCode
from trainer.files import temporary_beside, write_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Verdict:
    """Why and how the job, or only this pod, ends."""

    code: ExitCode
    reason: str
    rank: int
    step: int
    attempt: int
    whole_job: bool = True
    """False: only the pod that left it (a bad node)."""


def leave(verdict: Verdict, directories: Iterable[Path], pod: str) -> None:
    """Write the verdict to every directory that takes it; the last to write wins, all ranks mean the same.

    Raises OSError only when no directory took it.
    """
    name = "job.json" if verdict.whole_job else f"pod.{pod}.json"
    failures: list[OSError] = []
    written = 0
    for directory in directories:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(directory / name, json.dumps({**asdict(verdict), "pod": pod}).encode())
            written += 1
        except OSError as error:
            failures.append(error)
    if not written and failures:
        raise failures[0]


def withdraw(directories: Iterable[Path], pod: str, *, attempt: int) -> None:
    """Take back what earlier attempts have left: `attempt` trains, so that the job did not end with them."""
    for directory in directories:
        for name in (f"pod.{pod}.json", "job.json"):
            word = _read(directory / name, 0)
            if word is not None and word.attempt < attempt:
                try:
                    _remove_older(directory / name, attempt)
                except OSError as error:
                    log.warning("a verdict of attempt %d stays: %s", word.attempt, error)


def _remove_older(path: Path, attempt: int) -> None:
    """Judged again once nobody can replace it: a rank may have left this attempt's own verdict meanwhile."""
    aside = temporary_beside(path)
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        found = _read(aside, 0)
        if found is not None and found.attempt >= attempt:
            aside.rename(path)
        else:
            aside.unlink()


def find(directories: Iterable[Path], pod: str, *, newer_than_ns: dict[Path, int]) -> Verdict | None:
    """The verdict that holds for `pod`, its own before the job's; older ones belong to an earlier start."""
    for directory in directories:
        for name in (f"pod.{pod}.json", "job.json"):
            if (found := _read(directory / name, newer_than_ns.get(directory, 0))) is not None:
                return found
    return None


def _read(path: Path, oldest_ns: int) -> Verdict | None:
    """What cannot be understood is no verdict: it must not keep the pod from concluding."""
    try:
        if path.stat().st_mtime_ns < oldest_ns:
            return None
        values = json.loads(path.read_text())
        values.pop("pod", None)
        return Verdict(**{**values, "code": ExitCode(values["code"])})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is no verdict: %r", path, error)
        return None


def file_clock_ns(directory: Path) -> int:
    """Now, by the clock of the file system that `directory` is on."""
    directory.mkdir(parents=True, exist_ok=True)
    probe = temporary_beside(directory / "clock")
    probe.touch()
    now_ns = probe.stat().st_mtime_ns
    probe.unlink()
    return now_ns
