"""Intrinsic functions, conditions, parameters and dynamic references."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ops.local.aws.cloudformation.errors import ValidationError
from ops.local.aws.cloudformation.template import SUB_VARIABLE, Template, references

NO_VALUE = object()
DYNAMIC_REFERENCE = re.compile(r"\{\{resolve:(ssm):([^}:]+)(?::(\d+))?\}\}")


class Scope(Protocol):
    """Where an evaluation finds what lies outside the template."""

    def pseudo(self, name: str) -> str | list[str] | None:
        """The value of a pseudo parameter such as AWS::Region, or None."""

    def ref(self, name: str) -> Any:
        """What Ref on the resource gives."""

    def attribute(self, name: str, attribute: str) -> Any:
        """What Fn::GetAtt on the resource gives."""

    def imported(self, export: str) -> Any:
        """The value that another stack exports."""

    def zones(self, region: str) -> list[str]:
        """The availability zones of the region."""

    def parameter_store(self, name: str) -> str:
        """The value of a parameter of Systems Manager."""


class Evaluator:
    """Evaluates one template's values in a scope."""

    def __init__(self, template: Template, parameters: Mapping[str, Any], scope: Scope) -> None:
        self.template = template
        self.parameters = parameters
        self.scope = scope
        self._conditions: dict[str, bool] = {}
        self._functions: dict[str, Callable[[Any], Any]] = {
            "Ref": self._ref,
            "Fn::GetAtt": self._get_att,
            "Fn::Join": self._join,
            "Fn::Sub": self._sub,
            "Fn::Select": self._select,
            "Fn::Split": self._split,
            "Fn::If": self._if,
            "Fn::FindInMap": self._find_in_map,
            "Fn::GetAZs": lambda v: self.scope.zones(self.value(v) or str(self.scope.pseudo("AWS::Region"))),
            "Fn::ImportValue": lambda v: self.scope.imported(str(self.value(v))),
            "Fn::Base64": lambda v: base64.b64encode(str(self.value(v)).encode()).decode(),
            "Fn::Cidr": self._cidr,
            "Fn::ToJsonString": lambda v: json.dumps(self.value(v), separators=(",", ":")),
            "Fn::Length": lambda v: len(self.value(v)),
            "Fn::Equals": lambda v: self.value(v[0]) == self.value(v[1]),
            "Fn::And": lambda v: all(self._truth(item) for item in v),
            "Fn::Or": lambda v: any(self._truth(item) for item in v),
            "Fn::Not": lambda v: not self._truth(v[0]),
        }

    def value(self, value: Any) -> Any:
        """`value` with every function in it evaluated; AWS::NoValue removes its key or item."""
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, list):
            return [item for item in map(self.value, value) if item is not NO_VALUE]
        if isinstance(value, str) and "{{resolve:" in value:
            return DYNAMIC_REFERENCE.sub(lambda match: self.scope.parameter_store(match[2]), value)
        return value

    def condition(self, name: str) -> bool:
        """Whether the template's named condition holds."""
        if name not in self._conditions:
            conditions = self.template.get("Conditions", {})
            if name not in conditions:
                raise ValidationError(f"Template error: unresolved condition dependency {name}")
            self._conditions[name] = self._truth(conditions[name])
        return self._conditions[name]

    def holds(self, body: Mapping[str, Any]) -> bool:
        """Whether the resource or output is wanted at all."""
        return "Condition" not in body or self.condition(str(body["Condition"]))

    def _truth(self, value: Any) -> bool:
        if isinstance(value, dict) and set(value) == {"Condition"}:
            return self.condition(value["Condition"])
        return bool(self.value(value))

    def _mapping(self, value: dict[str, Any]) -> Any:
        if len(value) == 1:
            key, inner = next(iter(value.items()))
            if key in self._functions:
                return self._functions[key](inner)
            if key.startswith("Fn::"):
                raise ValidationError(f"Template error: {key} is not supported by this emulator")
        evaluated = {key: self.value(inner) for key, inner in value.items()}
        return {key: inner for key, inner in evaluated.items() if inner is not NO_VALUE}

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in self.parameters:
            return self.parameters[name]
        pseudo = self.scope.pseudo(name)
        return self.scope.ref(name) if pseudo is None else pseudo

    def _get_att(self, value: Any) -> Any:
        name, attribute = value if isinstance(value, list) else value.split(".", 1)
        return self.scope.attribute(name, str(self.value(attribute)))

    def _join(self, value: Any) -> str:
        separator, items = value
        return str(separator).join(_text(item) for item in self.value(items))

    def _sub(self, value: Any) -> str:
        text, own = (value, {}) if isinstance(value, str) else (value[0], value[1])
        variables = {key: self.value(inner) for key, inner in own.items()}

        def replace(match: re.Match[str]) -> str:
            name = match[1].strip()
            if name in variables:
                return _text(variables[name])
            return _text(self._get_att(name) if "." in name else self._ref(name))

        return SUB_VARIABLE.sub(replace, text).replace("${!", "${")

    def _select(self, value: Any) -> Any:
        index, items = int(self.value(value[0])), self.value(value[1])
        if not 0 <= index < len(items):
            raise ValidationError(f"Template error: Fn::Select cannot select nonexistent value at index {index}")
        return items[index]

    def _split(self, value: Any) -> list[str]:
        return str(self.value(value[1])).split(str(value[0]))

    def _if(self, value: Any) -> Any:
        return self.value(value[1] if self.condition(value[0]) else value[2])

    def _find_in_map(self, value: Any) -> Any:
        name, first, second = (self.value(part) for part in value[:3])
        try:
            return self.template["Mappings"][name][first][second]
        except KeyError:
            raise ValidationError(f"Template error: Unable to get mapping for {name}::{first}::{second}") from None

    def _cidr(self, value: Any) -> list[str]:
        block, count, bits = (self.value(part) for part in (*value, 8)[:3])
        subnets = ipaddress.ip_network(block).subnets(new_prefix=32 - int(bits))
        return [str(subnet) for _, subnet in zip(range(int(count)), subnets, strict=False)]


class SymbolicEvaluator(Evaluator):
    """Leaves a function whole where it needs what only a deployment can know."""

    def _mapping(self, value: dict[str, Any]) -> Any:
        if len(value) == 1:
            key, inner = next(iter(value.items()))
            if key.startswith("Fn::") and key not in ("Fn::GetAtt", "Fn::If") and self._unknown(inner):
                used = {name: self.parameters[name] for name in references(inner) if name in self.parameters}
                return {key: self.value(inner), "with": used}
        return super()._mapping(value)

    def _unknown(self, inner: Any) -> bool:
        return any(name not in self.parameters and not name.startswith("AWS::") for name in references(inner))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
