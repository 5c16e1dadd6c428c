"""Every allowed pair of choices, and the examples: no finding of anybody's, ours included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cfnlint.config import ConfigMixIn, ManualArgs
from cfnlint.runner import Runner

from environments.versions import KUBERNETES
from infra.template_rules import TEMPLATE_RULES

if TYPE_CHECKING:
    from conftest import Matrix

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_validator_and_nag_find_nothing(matrix: Matrix) -> None:
    findings = [
        (report["pluginName"], violation["ruleName"], construct.get("constructPath"), violation["description"])
        for report in matrix.report["pluginReports"]
        for violation in report.get("violations", [])
        for construct in violation["violatingConstructs"]
    ]
    assert findings == []
    assert {report["pluginName"] for report in matrix.report["pluginReports"]} >= {"AwsSolutions"}


def test_our_rules_find_nothing(matrix: Matrix) -> None:
    assert broken_rules(matrix) == []


def broken_rules(matrix: Matrix) -> list[tuple[str, str]]:
    """Environment and problem, by our own rules."""
    return [
        (environment.name, problem)
        for environment, templates in matrix.each()
        for rule in TEMPLATE_RULES
        for problem in rule(templates)
    ]


UNSEEN_BY_LINT = {
    "AddonVersion", "ConfigurationValues", "Input", "Manifest", "MaxSize", "MaxValue", "Metadata",
    "NetworkCardIndex", "PermissionsBoundary", "UserData", "Version",
}  # fmt: skip
"""Keys of values that no rule of cfn-lint looks at: templates that differ in them only are linted once."""


def shape_of(template: Any, name: str) -> str:
    """A template without its environment's name and without what lint does not see."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {strip(key): strip(item) for key, item in value.items() if key not in UNSEEN_BY_LINT}
        if isinstance(value, list):
            return sorted({json.dumps(strip(item)) for item in value})
        return value.replace(name, "NAME") if isinstance(value, str) else value

    return json.dumps(strip(template))


def test_cfn_lint_finds_nothing(matrix: Matrix) -> None:
    chosen = different_templates(matrix)
    assert len(chosen) > 20
    assert lint(matrix, chosen) == []


def different_templates(matrix: Matrix) -> list[Path]:
    """One of each shape."""
    chosen: dict[str, Path] = {}
    for environment, templates in matrix.each():
        for kind, template in templates.by_kind.items():
            path = matrix.folder / f"{environment.name}-{kind}.template.json"
            chosen.setdefault(shape_of(template, environment.name), path)
    return list(chosen.values())


def lint(matrix: Matrix, chosen: list[Path]) -> list[tuple[str, str, str]]:
    """What cfn-lint finds: file, rule, message."""
    # p5e is not sold in us-east-1, nor everything else in us-east-2; each environment is in its own region.
    by_region: dict[str, list[str]] = {}
    for path in chosen:
        by_region.setdefault(matrix.region_of(path), []).append(str(path))
    return [
        (Path(match.filename).name, match.rule.id, match.message)
        for region, paths in by_region.items()
        for match in Runner(ConfigMixIn(cli_args=None, **ManualArgs(templates=paths, regions=[region]))).run()
        if not accepted(match)
    ]


def accepted(match: Any) -> bool:
    """W3005: CDK's own kubectl provider says twice that its functions depend on their roles."""
    return match.rule.id == "W3005" and "KubectlProvider" in match.message


def test_no_token_is_left_in_any_template(matrix: Matrix) -> None:
    """A CDK token that nobody resolved leaks as text, without an error."""
    for environment, templates in matrix.each():
        text = json.dumps(templates.by_kind)
        assert "${Token[" not in text and "#{Token[" not in text, environment.name


def test_every_environment_has_its_five_stacks(matrix: Matrix) -> None:
    for environment, templates in matrix.each():
        assert set(templates.by_kind) == {"archive", "network", "storage", "cluster", "capacity"}, environment.name


def test_templates_stay_below_cloudformations_limits(matrix: Matrix) -> None:
    for environment, templates in matrix.each():
        for kind, template in templates.by_kind.items():
            assert len(template["Resources"]) < 400, (environment.name, kind)
            assert len(json.dumps(template)) < 900_000, (environment.name, kind)


def test_the_permissions_boundary_is_on_every_role(matrix: Matrix) -> None:
    for environment, templates in matrix.each():
        boundaries = {
            json.dumps(role["Properties"].get("PermissionsBoundary"))
            for _, role in templates.of_type("AWS::IAM::Role")
        }
        assert boundaries == {json.dumps(environment.permissions_boundary)}, environment.name


def test_a_lambda_stands_in_the_vpc_only_where_the_endpoint_demands_it(matrix: Matrix) -> None:
    """One in the VPC holds up its deletion by about 18 minutes (quickstart-amazon-eks#418); one without a way out
    needs every endpoint (aws-cdk#6642, #37491: isolated subnets were refused or timed out)."""
    for environment, templates in matrix.each():
        functions = [resource["Properties"] for _, resource in templates.of_type("AWS::Lambda::Function")]
        assert bool(functions) == (environment.plugins == "by-stack"), environment.name
        in_vpc = {"VpcConfig" in function for function in functions}
        assert in_vpc <= {environment.endpoint != "public"}, environment.name


CALLED = {
    "ecr.api", "ecr.dkr", "ec2", "eks", "eks-auth", "sts", "logs", "monitoring", "fsx", "autoscaling",
}  # fmt: skip


def test_a_network_without_a_way_out_has_an_endpoint_for_all_that_is_called(matrix: Matrix) -> None:
    """Report: aws-cdk#6642: a function that reaches nothing ends in a timeout, an hour into a deployment."""
    for environment, templates in matrix.each():
        found = [resource["Properties"] for _, resource in templates.of_type("AWS::EC2::VPCEndpoint")]
        kinds = [properties.get("VpcEndpointType") for properties in found]
        names = {str(properties["ServiceName"]).rpartition(f"{environment.region}.")[2] for properties in found}
        closed = environment.network.egress == "endpoints"
        in_vpc = environment.plugins == "by-stack" and environment.endpoint != "public"
        wanted = (
            CALLED | ({"lambda"} if in_vpc else set()) | ({"secretsmanager"} if environment.secrets else set())
        )
        assert kinds.count("Gateway") == 1, environment.name
        assert names >= (wanted if closed else set()), environment.name
        assert kinds.count("Interface") == (len(wanted) if closed else 0), environment.name
        assert bool(list(templates.of_type("AWS::EC2::NatGateway"))) != closed, environment.name


def test_efa_rules_do_not_depend_on_the_kubernetes_version(matrix: Matrix) -> None:
    """Reports: eksctl#8509, eksctl#8554: EKS' own group has EFA egress from 1.33 on, for some nodes only."""
    rules = {
        environment.kubernetes_version: {
            kind: templates.by_kind["network"]["Resources"][kind]["Properties"] for kind in ("EfaIn", "EfaOut")
        }
        for environment, templates in matrix.each()
    }
    assert set(rules) == set(KUBERNETES)
    assert all(rule == rules["1.34"] for rule in rules.values())


def test_the_archive_stack_can_adopt_what_it_would_make(matrix: Matrix) -> None:
    for _, templates in matrix.each():
        for kind in ("AWS::S3::Bucket", "AWS::ECR::Repository"):
            assert len(list(templates.of_type(kind))) == 1
