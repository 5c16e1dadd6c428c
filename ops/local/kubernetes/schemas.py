"""Objects checked against the published OpenAPI schemas of one Kubernetes version, every problem at once."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from kubernetes_validate.utils import SchemaNotFoundError, all_versions, schema_contents
from referencing import Registry, Resource

from ops.local.kubernetes.errors import invalid
from ops.local.kubernetes.kinds import Kind
from ops.local.kubernetes.objects import Object


def check_schema(kind: Kind, obj: Object, version: str) -> None:
    """Raises 422 with the field of every mistake."""
    validator = _validator(kind, version)
    if validator is None:
        return
    problems = sorted({p for e in validator.iter_errors(obj) for p in _problems(e)})
    if problems:
        raise invalid(kind, str(obj["metadata"].get("name", "")), problems)


def _problems(error: jsonschema.ValidationError) -> list[tuple[str, str]]:
    field = _field(error.absolute_path)
    if error.validator == "additionalProperties":
        allowed = error.schema.get("properties", {})
        return [(f"{field}.{k}".lstrip("."), "unknown field") for k in error.instance if k not in allowed]
    if error.validator == "required":
        missing = [k for k in error.validator_value if k not in error.instance]
        return [(f"{field}.{k}".lstrip("."), "Required value") for k in missing]
    return [(field or "body", f"Invalid value: {error.message}")]


def _field(path: Any) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


@cache
def _validator(kind: Kind, version: str) -> Any:
    directory = f"kubernetes-json-schema/v{nearest_version(version)}-local-strict"
    group = kind.group.split(".")[0]
    name = "-".join(part for part in (kind.kind.lower(), group, kind.version) if part)
    try:
        schema = schema_contents(f"{directory}/{name}.json", version)
    except (FileNotFoundError, SchemaNotFoundError):
        return None
    registry = _definitions(directory, version) @ (Resource.from_contents(schema) @ Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def _definitions(directory: str, version: str) -> Any:
    return Resource.from_contents(schema_contents(f"{directory}/_definitions.json", version))


def nearest_version(version: str) -> str:
    """The newest published schema that is not newer than `version` (`1.35`)."""

    def parts(text: str) -> tuple[int, int]:
        major, minor = text.split(".")[:2]
        return int(major), int(minor)

    return [str(v) for v in all_versions() if parts(v) <= parts(version)][-1]
