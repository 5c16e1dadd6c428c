"""AWS's published resource schemas, as cfn-lint carries them: what a type accepts and what replaces it."""

from __future__ import annotations

import importlib.util
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import ValidationError as SchemaError  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]

Schema = Mapping[str, Any]

# Patterns are written for another regular-expression dialect, and formats are checked by the service.
_IGNORED_KEYWORDS = ("pattern", "format", "patternProperties")


@lru_cache(maxsize=1)
def _folder() -> Path:
    """cfn-lint's data; importing cfn-lint itself would cost a second of every start."""
    spec = importlib.util.find_spec("cfnlint")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("cfn-lint is not installed: run `make setup`")
    return Path(spec.origin).parent / "data" / "schemas"


@lru_cache(maxsize=8)
def _names(region: str) -> Mapping[str, str]:
    """The region's types, each with the name of its schema's file."""
    names: dict[str, str] = json.loads((_folder() / "providers" / f"{region}.json").read_text())
    return names


@lru_cache(maxsize=256)
def schema_of(resource_type: str, region: str) -> Schema | None:
    """The type's schema in the region, or None where AWS has none, as for custom resources."""
    name = _names(region).get(resource_type)
    if name is None:
        return None
    schema: Schema = json.loads((_folder() / "resources" / f"{name}.json").read_text())
    return schema


def pointers(schema: Schema, kind: str) -> list[tuple[str, ...]]:
    """The property paths listed under `kind`, such as createOnlyProperties."""
    return [tuple(path.removeprefix("/properties/").split("/")) for path in schema.get(kind, [])]


def is_replaced(schema: Schema, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The properties whose change from `old` to `new` needs a new physical resource."""
    return sorted(
        "/".join(path) for path in pointers(schema, "createOnlyProperties") if _at(old, path) != _at(new, path)
    )


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for index, key in enumerate(path):
        if key == "*" and isinstance(value, list):
            return [_at(item, path[index + 1 :]) for item in value]
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def violations(resource_type: str, region: str, properties: Mapping[str, Any]) -> list[str]:
    """What AWS's schema says against the properties, in CloudFormation's wording."""
    schema = schema_of(resource_type, region)
    if schema is None or not schema.get("properties"):
        return []
    return sorted({text for error in _validator()(schema).iter_errors(properties) for text in _worded(error)})


@lru_cache(maxsize=1)
def _validator() -> Any:
    # CloudFormation takes "3" for 3 and "true" for true, in both directions.
    types = Draft7Validator.TYPE_CHECKER.redefine_many(
        {
            "integer": lambda _, v: _is_scalar(v) and _is_int(v),
            "number": lambda _, v: _is_scalar(v) and _is_number(v),
            "boolean": lambda _, v: isinstance(v, bool) or v in ("true", "false"),
            "string": lambda _, v: _is_scalar(v),
            "object": lambda _, v: isinstance(v, dict),
        }
    )
    bounds = {"minimum": _bound(operator.lt, "greater"), "maximum": _bound(operator.gt, "less"), "enum": _one_of}
    validators = {**dict.fromkeys(_IGNORED_KEYWORDS), **bounds}
    return extend(Draft7Validator, validators=validators, type_checker=types)


def _bound(is_outside: Callable[[float, float], bool], word: str) -> Any:
    """A bound that takes numbers written as text, as CloudFormation does."""

    def check(_: Any, bound: float, value: Any, __: Schema) -> Iterator[SchemaError]:
        if _is_scalar(value) and _is_number(value) and is_outside(float(value), bound):
            yield SchemaError(f"{value} is not {word} or equal to {bound}", validator="minimum")

    return check


def _one_of(_: Any, allowed: list[Any], value: Any, __: Schema) -> Iterator[SchemaError]:
    if value not in allowed and str(value) not in map(str, allowed):
        yield SchemaError(f"{value} is not one of {allowed}", validator="enum", instance=value)


def _is_scalar(value: object) -> bool:
    return isinstance(value, (str, int, float, bool))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return not isinstance(value, bool)


def _is_int(value: Any) -> bool:
    return _is_number(value) and float(value).is_integer()


def _worded(error: SchemaError) -> Iterator[str]:
    where = "#" + "".join(f"/{part}" for part in error.absolute_path)
    if error.validator == "required":
        missing = str(error.message).split("'")[1]
        yield f"{where}: required key [{missing}] not found"
    elif error.validator == "additionalProperties":
        allowed = set(error.schema.get("properties", {}))
        yield from (
            f"{where}: extraneous key [{key}] is not permitted" for key in sorted(set(error.instance) - allowed)
        )
    elif error.validator == "enum":
        yield f"{where}: {error.instance} is not a valid enum value"
    elif error.validator == "type":
        yield f"{where}: expected type: {error.validator_value}, found: {type(error.instance).__name__}"
    elif error.validator in (
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
    ):
        yield f"{where}: {error.message}"
