"""A problem of an environment file, and how pydantic's errors become problems."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, ValidationError


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


_PATTERNS: dict[str, str] = {}
_ALLOWED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "float_parsing": "a number",
    "bool_parsing": "true or false",
    "timezone_aware": "a time with its zone, such as 2026-12-01T11:30:00Z",
    "model_type": "a section with fields",
    "tuple_type": "a list",
    "dict_type": "keys and values",
}
_UNION_TAGS = ("on-demand", "odcr", "capacity-block")
"""pydantic puts them into paths; the file has no such level."""


def text(pattern: str, allowed: str, max_length: int | None = None) -> Any:
    """A field for text of this form; `allowed` says it in words."""
    _PATTERNS[pattern] = allowed
    return Field(pattern=pattern, max_length=max_length)


def from_pydantic(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """Every error of a validation, as problems."""
    return [_problem(item, root) for item in error.errors(include_url=False)]


def _problem(item: Any, root: type[BaseModel]) -> Problem:
    path = ".".join(str(part) for part in item["loc"] if part not in _UNION_TAGS) or "file"
    context = item.get("ctx", {})
    match item["type"]:
        case "missing":
            return Problem(path, "is missing", "the field is required", "add it")
        case "extra_forbidden":
            return _unknown(path, item["loc"], root)
        case "union_tag_invalid":
            kinds = f"kinds are {context['expected_tags']}"
            return Problem(path, f"kind is {context['tag']!r}", kinds, "use one of them")
        case "union_tag_not_found":
            return Problem(path, "has no kind", "on-demand, odcr or capacity-block", "add `kind:`")
        case "value_error":
            return _raised(path, context["error"])
        case "string_pattern_mismatch":
            allowed = _PATTERNS.get(context["pattern"], f"text like {context['pattern']}")
            return Problem(path, f"is {item['input']!r}", allowed, "correct it")
        case "string_type" if isinstance(item["input"], int | float):
            return Problem(path, f"is the number {item['input']}", "text", "put it in quotes")
        case "too_long":
            most = context["max_length"]
            return Problem(path, f"has {context['actual_length']} entries", f"at most {most}", "remove some")
        case kind:
            allowed = _ALLOWED.get(kind) or _lower(item["msg"]).removeprefix("input should be ")
            return Problem(path, f"is {item['input']!r}", allowed, "change it")


def _raised(path: str, error: Exception) -> Problem:
    if isinstance(error, RefusedError):
        return Problem(path, error.what, error.allowed, error.fix)
    return Problem(path, str(error), "settings that agree with each other", "change one of them")


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
