"""Environment files on disk: read with positions, written with their comments kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode

from environments.problems import InvalidEnvironmentError, Problem

_LONGEST_NUMBER = 18
"""Digits. Python would compute with more, and overflow where we divide."""


class _Constructor(SafeConstructor):
    """Where ruamel raises something of Python's without saying in which line."""

    def date_or_text(self, node: ScalarNode) -> Any:
        """30 February: as text, which then is no date like any other text."""
        try:
            return self.construct_yaml_timestamp(node)
        except ValueError:
            return node.value

    def whole_number(self, node: ScalarNode) -> Any:
        """Refuses what no field could mean."""
        if len(node.value) > _LONGEST_NUMBER:
            raise ConstructorError(None, None, f"a number of {len(node.value)} digits", node.start_mark)
        return self.construct_yaml_int(node)


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", _Constructor.date_or_text)
_Constructor.add_constructor("tag:yaml.org,2002:int", _Constructor.whole_number)


def read(path: Path) -> Any:
    """The plain values of a YAML file. Raises InvalidEnvironmentError if it is missing or not YAML."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    try:
        data = yaml.load(path)
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from None
    except RecursionError:
        raise _unreadable(path, "is nested too deeply") from None
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise _unreadable(path, f"{where}{error.problem}") from None
    except YAMLError as error:
        raise _unreadable(path, str(error)) from None
    if not isinstance(data, Mapping):
        raise _unreadable(path, "holds no fields")
    return data


def _unreadable(path: Path, what: str) -> InvalidEnvironmentError:
    allowed = "a YAML file of fields, each key once"
    return InvalidEnvironmentError(str(path), [Problem("file", what, allowed, "see docs/environment-file.md")])


def write_value(path: Path, field: str, value: object) -> None:
    """Set one field (`archive.bucket`) and leave every comment and the order as they are.

    The file is replaced in one step. Raises InvalidEnvironmentError if it cannot be read.
    """
    read(path)
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    document = yaml.load(path)
    *parents, last = field.split(".")
    section = document
    for parent in parents:
        if section.get(parent) is None:
            section[parent] = {}
        section = section[parent]
    section[last] = value
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        yaml.dump(document, file)
    temporary.replace(path)
