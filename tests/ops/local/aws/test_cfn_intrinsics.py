"""Intrinsic functions against a scope of known values."""

from __future__ import annotations

from typing import Any

import pytest

from ops.local.aws.cloudformation.errors import ValidationError
from ops.local.aws.cloudformation.intrinsics import Evaluator, SymbolicEvaluator

pytestmark = pytest.mark.unit


class KnownScope:
    """Answers with the question."""

    def pseudo(self, name: str) -> str | None:
        return "us-east-1" if name == "AWS::Region" else None

    def ref(self, name: str) -> Any:
        return f"id-of-{name}"

    def attribute(self, name: str, attribute: str) -> Any:
        return f"{attribute}-of-{name}"

    def imported(self, export: str) -> Any:
        return f"imported-{export}"

    def zones(self, region: str) -> list[str]:
        return [f"{region}a", f"{region}b"]

    def parameter_store(self, name: str) -> str:
        return f"stored-{name}"


class Symbols(KnownScope):
    """Leaves references as they are."""

    def ref(self, name: str) -> Any:
        return {"Ref": name}

    def attribute(self, name: str, attribute: str) -> Any:
        return {"Fn::GetAtt": [name, attribute]}


TEMPLATE: dict[str, Any] = {
    "Mappings": {"M": {"us-east-1": {"X": "mapped"}}},
    "Conditions": {
        "IsProd": {"Fn::Equals": [{"Ref": "Stage"}, "prod"]},
        "IsNot": {"Fn::Not": [{"Condition": "IsProd"}]},
        "Both": {"Fn::And": [{"Condition": "IsProd"}, {"Condition": "IsNot"}]},
        "Either": {"Fn::Or": [{"Condition": "IsProd"}, {"Condition": "IsNot"}]},
    },
}


def evaluated(value: Any) -> Any:
    return Evaluator(TEMPLATE, {"Stage": "prod"}, KnownScope()).value(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"Ref": "Stage"}, "prod"),
        ({"Ref": "AWS::Region"}, "us-east-1"),
        ({"Ref": "Vpc"}, "id-of-Vpc"),
        ({"Fn::GetAtt": ["Role", "Arn"]}, "Arn-of-Role"),
        ({"Fn::Join": ["-", ["a", {"Ref": "Vpc"}, 3]]}, "a-id-of-Vpc-3"),
        ({"Fn::Sub": "${Vpc}/${Role.Arn}/${!Kept}"}, "id-of-Vpc/Arn-of-Role/${Kept}"),
        ({"Fn::Sub": ["${x}", {"x": {"Ref": "Stage"}}]}, "prod"),
        ({"Fn::Select": ["1", {"Fn::Split": [",", "a,b"]}]}, "b"),
        ({"Fn::Select": [0, {"Fn::GetAZs": ""}]}, "us-east-1a"),
        ({"Fn::FindInMap": ["M", {"Ref": "AWS::Region"}, "X"]}, "mapped"),
        ({"Fn::ImportValue": "other:Export"}, "imported-other:Export"),
        ({"Fn::Base64": "hi"}, "aGk="),
        ({"Fn::Select": [1, {"Fn::Cidr": ["10.0.0.0/16", 4, 8]}]}, "10.0.1.0/24"),
        ({"Fn::If": ["IsProd", "yes", "no"]}, "yes"),
        ("{{resolve:ssm:/a/b}}", "stored-/a/b"),
        ({"A": {"Ref": "AWS::NoValue"}, "B": [1, {"Ref": "AWS::NoValue"}]}, {"B": [1]}),
        ({"Fn::Join": ["", [True]]}, "true"),
    ],
)
def test_functions(value: Any, expected: Any) -> None:
    assert evaluated(value) == expected


@pytest.mark.parametrize(
    ("name", "holds"), [("IsProd", True), ("IsNot", False), ("Both", False), ("Either", True)]
)
def test_conditions(name: str, holds: bool) -> None:
    assert Evaluator(TEMPLATE, {"Stage": "prod"}, KnownScope()).condition(name) is holds


@pytest.mark.parametrize(
    "value",
    [
        {"Fn::FindInMap": ["M", "nowhere", "X"]},
        {"Fn::Select": [5, ["a"]]},
        {"Fn::Unheard": []},
        {"Fn::If": ["Unknown", 1, 2]},
    ],
)
def test_what_cannot_be_evaluated_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError, match="Template error"):
        evaluated(value)


def test_a_symbolic_value_changes_with_the_parameters_in_it() -> None:
    value = {"Fn::Join": ["", [{"Ref": "Vpc"}, {"Ref": "Stage"}]]}
    one, other = (SymbolicEvaluator(TEMPLATE, {"Stage": stage}, Symbols()).value(value) for stage in "ab")
    assert one != other


def test_a_symbolic_select_from_an_attribute_stays_whole() -> None:
    value = {"Fn::Select": [1, {"Fn::Split": ["/", {"Fn::GetAtt": ["A", "Arn"]}]}]}
    assert "Fn::Select" in SymbolicEvaluator(TEMPLATE, {}, Symbols()).value(value)
