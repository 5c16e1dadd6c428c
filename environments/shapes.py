"""What pydantic says about a file's shape, in words that say how to mend it."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from environments.problems import PATTERNS, Problem, RefusedError

Place = tuple[int | str, ...]
_SHOWN_CHARACTERS = 100
_TIME = "a time with its zone, such as 2026-12-01T11:30:00Z"
_ALLOWED = {
    "bool_": "true or false",
    "date_": "a date such as 2027-03-31",
    "datetime_": _TIME,
    "dict_type": "keys and values",
    "finite_number": "a finite number",
    "float_": "a number",
    "int_": "a whole number",
    "model_": "a section with fields",
    "string_type": "text",
    "timezone_aware": _TIME,
    "tuple_type": "a list",
}
"""By how pydantic's names of errors begin."""
_KINDS = ("on-demand", "odcr", "capacity-block")
_ALTERNATIVE = re.compile(r"^(int|float|str|bool|constrained-\w+|literal\[.*\])$")
"""Levels that pydantic puts into paths and that the file does not have: kinds of capacity, alternatives."""


def from_pydantic(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """Every error of a validation as a problem; a field with alternatives has one, not one for each."""
    by_field: dict[str, list[Problem]] = {}
    for item in error.errors(include_url=False):
        problem = _problem(item, root)
        by_field.setdefault(problem.field, []).append(problem)
    return [problem for found in by_field.values() for problem in _merged(found)]


def shown(value: Any) -> str:
    """A value as people know it from the file, shortened."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date):
        return value.isoformat()
    text = repr(value) if isinstance(value, str | int | float) else reprlib.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _merged(found: list[Problem]) -> list[Problem]:
    if len({problem.what for problem in found}) > 1:
        return found
    return [replace(found[0], allowed=" or ".join(dict.fromkeys(problem.allowed for problem in found)))]


def _path(loc: Place) -> str:
    parts = [str(part) for part in loc]
    if parts[:1] == ["capacity"]:
        parts = [part for part in parts if part not in _KINDS]
    if _is_alternative(loc):
        parts = parts[:-1]
    return ".".join(parts) or "file"


def _is_alternative(loc: Place) -> bool:
    return len(loc) > 1 and loc[0] != "tags" and bool(_ALTERNATIVE.match(str(loc[-1])))


def _problem(item: Any, root: type[BaseModel]) -> Problem:
    path, value, context = _path(item["loc"]), item["input"], item.get("ctx", {})
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
            allowed = PATTERNS.get(context["pattern"], f"text like {context['pattern']}")
            return Problem(path, f"is {shown(value)}", allowed, "correct it")
        case "string_type" if isinstance(value, int | float | date) and not _is_alternative(item["loc"]):
            number = "" if isinstance(value, bool | date) else "the number "
            return Problem(path, f"is {number}{shown(value)}", "text", "put it in quotes")
        case "string_too_long" | "string_too_short" | "too_long":
            return _length(path, value, item["type"], context)
        case _ if value is None:
            required = len(item["loc"]) == 1 and _is_required(root, path)
            fix = "give it a value" if required else "give it a value, or remove the line"
            return Problem(path, "is empty", _allowed(item), fix)
        case _:
            return Problem(path, f"is {shown(value)}", _allowed(item), "change it")


def _is_required(root: type[BaseModel], name: str) -> bool:
    return any(field.is_required() for key, field in root.model_fields.items() if name in (key, field.alias))


def _allowed(item: Any) -> str:
    fits = [beginning for beginning in _ALLOWED if item["type"].startswith(beginning)]
    if fits:
        return _ALLOWED[fits[0]]
    message: str = item["msg"]
    return (message[:1].lower() + message[1:]).removeprefix("input should be ")


def _length(path: str, value: Any, kind: str, context: dict[str, Any]) -> Problem:
    what = "entries" if kind == "too_long" else "characters"
    if kind == "string_too_short":
        return Problem(path, f"has {len(value)} {what}", f"at least {context['min_length']}", "write more")
    fix = "remove some" if kind == "too_long" else "shorten it"
    return Problem(path, f"has {len(value)} {what}", f"at most {context['max_length']}", fix)


def _raised(path: str, error: Exception) -> Problem:
    if isinstance(error, RefusedError):
        return Problem(path, error.what, error.allowed, error.fix)
    return Problem(path, str(error), "settings that agree with each other", "change one of them")


def _unknown(path: str, loc: Place, root: type[BaseModel]) -> Problem:
    known = _fields_at(root, loc[:-1])
    if meant := _meant(str(loc[-1]), known):
        return Problem(path, "is not a field", "unknown fields are refused", f"did you mean {meant!r}?")
    return Problem(path, "is not a field", f"known here: {', '.join(known)}", "remove it, or correct its name")


def _meant(name: str, known: Iterable[str]) -> str | None:
    """A field that has this name in its own (`zone`), or the one spelt most like it."""
    whole = [field for field in known if name in field.split("_")]
    return next(iter(whole or difflib.get_close_matches(name, known, n=1)), None)


def _fields_at(root: type[BaseModel], loc: Place) -> list[str]:
    model: Any = root
    for part in loc:
        model = _inside(model, part)
    return [field.alias or name for name, field in getattr(model, "model_fields", {}).items()]


def _inside(model: Any, part: int | str) -> Any:
    """What a part of a path leads to: an entry of a list, a field, or a kind of capacity."""
    if isinstance(part, int):
        return next(iter(get_args(model)), None)
    if hasattr(model, "model_fields"):
        field = model.model_fields.get(part)
        return field.annotation if field else None
    kinds = {get_args(one.model_fields["kind"].annotation)[0]: one for one in get_args(model)}
    return kinds.get(part)
