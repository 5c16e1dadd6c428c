"""A problem of an environment file, and the exceptions that carry problems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import Field


@dataclass(frozen=True)
class Problem:
    """What is wrong, in the one form that people see."""

    field: str
    """Path of the field, with dots."""
    what: str
    """What it is, and why that is wrong."""
    allowed: str
    fix: str
    report: str = ""
    """The public report, or the documentation, that taught the rule."""

    def __str__(self) -> str:
        taught = f" ({self.report})" if self.report else ""
        return f"{self.field}: {self.what}; {self.allowed}; {self.fix}{taught}"


class InvalidEnvironmentError(Exception):
    """Carries every problem of a file, each with its fix. The command's exit code is 2."""

    def __init__(self, source: str, problems: Iterable[Problem | str]) -> None:
        self.source = source
        self.problems = [str(problem) for problem in problems]
        count = f"{len(self.problems)} problem{'s' if len(self.problems) != 1 else ''}"
        super().__init__(f"{source}: {count}\n" + "\n".join(f"  {problem}" for problem in self.problems))


class RefusedError(ValueError):
    """Raised by a validator of ours: what, allowed and fix in one."""

    def __init__(self, what: str, allowed: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.allowed, self.fix = what, allowed, fix


PATTERNS: dict[str, str] = {
    r"^(\d+|\d+(\.\d+)?s|auto)$": "a number of steps, seconds such as 90s, or auto",
    r"^[a-z0-9][a-z0-9-]{0,39}$": "at most 40 lower-case letters, digits and -, the first no -",
}
"""What a pattern asks for, in words. These are the training configuration's and the fault file's of `trainer`,
which knows nothing of us."""


def text(pattern: str, allowed: str, min_length: int | None = None, max_length: int | None = None) -> Any:
    """A field for text of this form; `allowed` says it in words."""
    PATTERNS[pattern] = allowed
    return Field(pattern=pattern, min_length=min_length, max_length=max_length)
