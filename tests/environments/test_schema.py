"""The schema for editors is the one of the code, takes the examples and refuses what the code refuses by shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from ruamel.yaml import YAML

from environments.environment import Environment, find, names
from environments.schema import PATH, schema_text

pytestmark = pytest.mark.unit

NEGATIVE = Path(__file__).parent / "negative"
DOCS = Path(__file__).parents[2] / "docs" / "environment-file.md"


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    return Draft202012Validator(json.loads(PATH.read_text(encoding="utf-8")))


def plain(path: Path) -> Any:
    """As an editor sees it: times and dates are text."""
    return json.loads(json.dumps(YAML(typ="safe", pure=True).load(path), default=lambda value: value.isoformat()))


def test_it_is_up_to_date() -> None:
    assert PATH.read_text(encoding="utf-8") == schema_text(), "run `python -m environments.schema`"


@pytest.mark.parametrize("name", names())
def test_it_takes_the_examples(name: str, validator: Draft202012Validator) -> None:
    assert list(validator.iter_errors(plain(find(name)))) == []


@pytest.mark.parametrize(
    "name", ["unknown_field", "wrong_type", "missing_field", "spot", "throughput", "image_by_tag"]
)
def test_it_refuses_wrong_shapes(name: str, validator: Draft202012Validator) -> None:
    assert list(validator.iter_errors(plain(NEGATIVE / f"shape.{name}.yaml")))


def fields(schema: dict[str, Any]) -> set[str]:
    """Every field of the file, except the training section's."""
    sections = {name: part for name, part in schema["$defs"].items() if not name.endswith("Config")}
    return set(schema["properties"]) | {key for part in sections.values() for key in part.get("properties", {})}


def test_every_field_is_in_the_documentation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    missing = {field for field in fields(Environment.model_json_schema()) if f"`{field}`" not in text}
    assert missing == set()
