"""A template's parameters: defaults, limits, and values from Systems Manager."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from ops.local.aws import clients
from ops.local.aws.cloudformation.errors import ValidationError
from ops.local.aws.cloudformation.template import Template

SSM_PREFIX = "AWS::SSM::Parameter::Value<"


def given(asked: list[dict[str, Any]], previous: Mapping[str, Any]) -> dict[str, Any]:
    """The values as the caller gave them; UsePreviousValue takes what was given before."""
    values = {}
    for parameter in asked:
        key = parameter["ParameterKey"]
        if not parameter.get("UsePreviousValue"):
            values[key] = parameter.get("ParameterValue", "")
        elif key in previous:
            values[key] = previous[key]
    return values


def resolve(template: Template, values: Mapping[str, Any], region: str) -> dict[str, Any]:
    """Every parameter's value, refused where CloudFormation refuses it."""
    declared: Mapping[str, Mapping[str, Any]] = template.get("Parameters", {})
    unknown = sorted(set(values) - set(declared))
    if unknown:
        raise ValidationError(f"Parameters: [{', '.join(unknown)}] do not exist in the template")
    missing = sorted(k for k, spec in declared.items() if k not in values and "Default" not in spec)
    if missing:
        raise ValidationError(f"Parameters: [{', '.join(missing)}] must have values")
    return {key: _typed(key, spec, values.get(key, spec.get("Default")), region) for key, spec in declared.items()}


def _typed(key: str, spec: Mapping[str, Any], value: Any, region: str) -> Any:
    kind = spec.get("Type", "String")
    if kind.startswith(SSM_PREFIX):
        value, kind = _from_systems_manager(str(value), region), kind.removeprefix(SSM_PREFIX).removesuffix(">")
    _check(key, spec, value)
    if kind == "CommaDelimitedList" or kind.startswith("List<"):
        return [item.strip() for item in str(value).split(",")]
    return str(value)


def _check(key: str, spec: Mapping[str, Any], value: Any) -> None:
    allowed = spec.get("AllowedValues")
    if allowed is not None and str(value) not in [str(item) for item in allowed]:
        raise ValidationError(
            f"Parameter '{key}' must be one of AllowedValues"
            if allowed
            else f"Parameter '{key}' has no AllowedValues"
        )
    pattern = spec.get("AllowedPattern")
    if pattern is not None and not re.fullmatch(pattern, str(value)):
        raise ValidationError(f"Parameter '{key}' must match pattern {pattern}")


def _from_systems_manager(name: str, region: str) -> str:
    try:
        return str(clients.client("ssm", region).get_parameter(Name=name)["Parameter"]["Value"])
    except ClientError as error:
        raise ValidationError(
            f"Unable to fetch parameters [{name}] from parameter store for this account."
        ) from error
