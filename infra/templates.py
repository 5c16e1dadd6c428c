"""The synthesized templates of one environment as plain dictionaries, with references between stacks followed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Template = dict[str, Any]
Address = tuple[str, str]
"""Stack kind (`network`) and logical id."""


@dataclass(frozen=True)
class Templates:
    """By stack kind: archive, network, storage, cluster, capacity."""

    by_kind: dict[str, Template]

    @classmethod
    def read(cls, folder: Path, environment: str) -> Templates:
        """Those of an environment in a cloud assembly's folder."""
        prefix, suffix = f"{environment}-", ".template.json"
        paths = sorted(folder.glob(f"{prefix}*{suffix}"))
        return cls({path.name[len(prefix) : -len(suffix)]: json.loads(path.read_text()) for path in paths})

    def of_type(self, kind: str) -> Iterator[tuple[Address, dict[str, Any]]]:
        """Every resource of a CloudFormation type."""
        for stack, template in self.by_kind.items():
            for logical_id, resource in template.get("Resources", {}).items():
                if resource["Type"] == kind:
                    yield (stack, logical_id), resource

    def resources(self) -> Iterator[tuple[Address, dict[str, Any]]]:
        """Every resource."""
        for stack, template in self.by_kind.items():
            for logical_id, resource in template.get("Resources", {}).items():
                yield (stack, logical_id), resource

    def target(self, stack: str, value: Any) -> Address | None:
        """The resource that a Ref, GetAtt or ImportValue in a stack means; None for anything else."""
        if not isinstance(value, dict) or len(value) != 1:
            return None
        (function, argument), *_ = value.items()
        if function == "Ref":
            return (stack, argument)
        if function == "Fn::GetAtt":
            return (stack, argument[0] if isinstance(argument, list) else argument.split(".")[0])
        if function == "Fn::ImportValue" and isinstance(argument, str):
            return self._exported(argument)
        return None

    def exports(self) -> dict[str, Address]:
        """Export name to the resource whose value it is."""
        found: dict[str, Address] = {}
        for stack, template in self.by_kind.items():
            for output in template.get("Outputs", {}).values():
                name = output.get("Export", {}).get("Name")
                address = self.target(stack, output["Value"]) if isinstance(name, str) else None
                if address:
                    found[name] = address
        return found

    def imports(self) -> set[str]:
        """Names of exports that some stack uses."""
        return set(_imports_in(self.by_kind))

    def _exported(self, name: str) -> Address | None:
        return self.exports().get(name)


def _imports_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "Fn::ImportValue" and isinstance(item, str):
                yield item
            else:
                yield from _imports_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _imports_in(item)
