"""A problem of an environment file, and how pydantic's errors become problems."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError


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


def from_pydantic(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """Every error of a validation, as problems."""
    return [_problem(item, root) for item in error.errors(include_url=False)]


def _problem(item: Any, root: type[BaseModel]) -> Problem:
    path = ".".join(str(part) for part in item["loc"]) or "file"
    kind = item["type"]
    if kind == "missing":
        return Problem(path, "is missing", "the field is required", "add it")
    if kind == "extra_forbidden":
        return _unknown(path, item["loc"], root)
    if kind == "union_tag_invalid":
        return Problem(
            path, f"kind is {item['ctx']['tag']!r}", f"kinds are {item['ctx']['expected_tags']}", "use one of them"
        )
    if kind == "union_tag_not_found":
        return Problem(path, "has no `kind`", "on-demand, odcr or capacity-block", "add `kind:`")
    if kind == "value_error":
        return Problem(path, str(item["ctx"]["error"]), "the settings must agree", "change one of them")
    return Problem(path, f"is {item['input']!r}", _lower(item["msg"]), "change the value")


def _unknown(path: str, loc: tuple[int | str, ...], root: type[BaseModel]) -> Problem:
    known = _fields_at(root, loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    fix = f"did you mean {close[0]!r}?" if close else "remove it, or correct its name"
    allowed = f"known here: {', '.join(known)}" if known else "unknown fields are refused"
    return Problem(path, "is not a field", allowed, fix)


def _fields_at(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    model: Any = root
    for part in loc:
        field = getattr(model, "model_fields", {}).get(part)
        model = field.annotation if field else None
    return list(getattr(model, "model_fields", {}))


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
