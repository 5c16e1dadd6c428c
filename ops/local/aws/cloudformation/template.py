"""Reading templates: JSON or YAML in, references and their order out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

import yaml

from ops.local.aws.cloudformation.errors import ValidationError

Template = dict[str, Any]

SUB_VARIABLE = re.compile(r"\$\{([^!][^}]*)\}")
SECTIONS = frozenset(
    [
        "AWSTemplateFormatVersion",
        "Description",
        "Metadata",
        "Parameters",
        "Mappings",
        "Conditions",
        "Rules",
        "Transform",
        "Resources",
        "Outputs",
        "Hooks",
    ]
)


class _CloudFormationLoader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms (!Ref, !GetAtt, !Sub …)."""


def _short_form(loader: _CloudFormationLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(cast(yaml.MappingNode, node), deep=True)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_CloudFormationLoader.add_multi_constructor("!", _short_form)
# Dates stay strings: a template's "2012-10-17" is a policy version.
_CloudFormationLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse(body: str) -> Template:
    """The template in `body`, refused as CloudFormation refuses what is not one."""
    try:
        template = json.loads(body) if body.lstrip().startswith("{") else yaml.load(body, _CloudFormationLoader)
    except (ValueError, yaml.YAMLError) as error:
        raise ValidationError(f"Template format error: {error}") from error
    if not isinstance(template, dict):
        raise ValidationError("Template format error: unsupported structure.")
    unknown = sorted(set(template) - SECTIONS)
    if unknown:
        raise ValidationError(f"Invalid template property or properties [{', '.join(unknown)}]")
    if not template.get("Resources"):
        raise ValidationError("Template format error: At least one Resources member must be defined.")
    return template


def references(value: object) -> Iterator[str]:
    """Every logical name that `value` refers to by Ref, Fn::GetAtt or Fn::Sub."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _references_of(str(key), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def _references_of(key: str, inner: Any) -> Iterator[str]:
    if key == "Ref" and isinstance(inner, str):
        yield inner
    elif key == "Fn::GetAtt" and isinstance(inner, (str, list)):
        yield inner[0] if isinstance(inner, list) else inner.split(".")[0]
    elif key == "Fn::Sub":
        yield from _sub_references(inner)
    else:
        yield from references(inner)


def _sub_references(value: Any) -> Iterator[str]:
    text, own = (value, {}) if isinstance(value, str) else (value[0], value[1])
    for name in SUB_VARIABLE.findall(text):
        if name not in own:
            yield name.split(".")[0]
    yield from references(own)


def depends_on(resource: Mapping[str, Any]) -> list[str]:
    """What the resource names under DependsOn."""
    named = resource.get("DependsOn", [])
    return [named] if isinstance(named, str) else list(named)


def dependencies(resources: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    """What each resource must wait for, refusing circles as CloudFormation does."""
    graph = {
        name: ({*references(body.get("Properties", {})), *depends_on(body)} & set(resources)) - {name}
        for name, body in resources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = ", ".join(sorted(set(error.args[1])))
        raise ValidationError(f"Circular dependency between resources: [{circle}]") from error
    return graph
