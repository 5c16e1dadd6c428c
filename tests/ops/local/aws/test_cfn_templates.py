"""Reading templates: references, order, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from ops.local.aws.cloudformation.errors import ValidationError
from ops.local.aws.cloudformation.template import dependencies, parse, references

pytestmark = pytest.mark.unit


def test_yaml_short_forms_mean_the_long_ones() -> None:
    template = parse(
        "Resources:\n  A:\n    Type: T\n    Properties: {B: !Ref C, D: !GetAtt E.F.G, H: !Sub '${I}'}\n"
    )
    assert template["Resources"]["A"]["Properties"] == {
        "B": {"Ref": "C"},
        "D": {"Fn::GetAtt": ["E", "F.G"]},
        "H": {"Fn::Sub": "${I}"},
    }


def test_a_policy_version_stays_text_in_yaml() -> None:
    body = "Resources:\n  A:\n    Type: T\n    Properties: {Version: 2012-10-17}\n"
    assert parse(body)["Resources"]["A"]["Properties"]["Version"] == "2012-10-17"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("{", "Template format error"),
        ("[]", "unsupported structure"),
        ('{"Resources": {}}', "At least one Resources member"),
        ('{"Resources": {"A": {}}, "Resuorces": {}}', r"Invalid template property or properties \[Resuorces\]"),
    ],
)
def test_what_is_no_template_is_refused(body: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        parse(body)


def test_every_way_to_refer_is_found() -> None:
    value = [
        {"Ref": "A"},
        {"Fn::GetAtt": ["B", "X"]},
        {"Fn::GetAtt": "C.X"},
        {"Fn::Sub": "${D} ${E.X} ${!not} ${own}${AWS::Region}"},
        {"Fn::Sub": ["${own}", {"own": {"Ref": "F"}}]},
    ]
    assert list(references(value)) == ["A", "B", "C", "D", "E", "own", "AWS::Region", "F"]


def test_resources_wait_for_what_they_name() -> None:
    resources: dict[str, Any] = {
        "A": {"Properties": {"X": {"Ref": "B"}}},
        "B": {"DependsOn": "C"},
        "C": {"Properties": {"X": {"Ref": "Parameter"}}},
    }
    assert dependencies(resources) == {"A": {"B"}, "B": {"C"}, "C": set()}


def test_a_circle_is_refused_with_its_members() -> None:
    resources: dict[str, Any] = {"A": {"Properties": {"X": {"Ref": "B"}}}, "B": {"DependsOn": ["A"]}}
    with pytest.raises(ValidationError, match=r"Circular dependency between resources: \[A, B\]"):
        dependencies(resources)
