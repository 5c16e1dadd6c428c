"""What must not change between two versions of this project, or between two examples: exports in use, and the
logical ids of what holds state. UPDATE_GOLDEN=1 writes them anew; each such change needs a migration."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from infra.templates import Template, Templates

if TYPE_CHECKING:
    from conftest import Matrix

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

GOLDEN = Path(__file__).parent / "golden"
STATEFUL = {
    "AWS::S3::Bucket", "AWS::ECR::Repository", "AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::SecurityGroup",
    "AWS::FSx::FileSystem", "AWS::FSx::DataRepositoryAssociation", "AWS::EKS::Cluster", "AWS::EKS::Nodegroup",
    "AWS::EC2::LaunchTemplate", "AWS::KMS::Key", "AWS::Logs::LogGroup",
}  # fmt: skip
PRESET = "two-node-p5"


def golden(name: str, found: Any) -> Any:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


def exports_of(templates: Templates, name: str) -> dict[str, str]:
    """Export names and where their values come from, without the environment's name."""
    return {
        export.replace(f"{name}-", "", 1): f"{stack}/{logical_id}"
        for export, (stack, logical_id) in templates.exports().items()
    }


def test_exports_are_the_pinned_ones_in_every_environment(matrix: Matrix) -> None:
    """So an update between any two never needs an export in use to change or go."""
    pinned = golden("exports.json", exports_of(matrix.templates(PRESET), PRESET))
    for environment, templates in matrix.each():
        assert exports_of(templates, environment.name) == pinned, environment.name


def test_only_what_is_pinned_is_imported(matrix: Matrix) -> None:
    """Between stacks go network, groups and the file system's names, nothing else."""
    for environment, templates in matrix.each():
        assert templates.imports() <= set(templates.exports()), environment.name
        kinds = {
            templates.by_kind[stack]["Resources"][logical_id]["Type"]
            for stack, logical_id in templates.exports().values()
        }
        assert kinds == {
            "AWS::EC2::VPC",
            "AWS::EC2::Subnet",
            "AWS::EC2::SecurityGroup",
            "AWS::FSx::FileSystem",
            "AWS::EKS::Cluster",
        }


def test_logical_ids_of_what_holds_state(matrix: Matrix) -> None:
    stateful = {
        f"{stack}/{logical_id}": resource["Type"]
        for (stack, logical_id), resource in matrix.templates(PRESET).resources()
        if resource["Type"] in STATEFUL and "KubectlProvider" not in logical_id
    }
    pinned = golden("logical_ids.json", stateful)
    assert stateful == pinned
    for environment, templates in matrix.each():
        everywhere = {f"{stack}/{logical_id}" for (stack, logical_id), _ in templates.resources()}
        lost = {key for key in pinned if key not in everywhere and "public" not in key}
        assert lost == set(), environment.name


def without_what_others_own(template: Template) -> Template:
    """Less the manifests and CDK's own functions, whose contents follow other files and other versions."""
    kept = {
        logical_id: resource
        for logical_id, resource in template["Resources"].items()
        if not resource["Type"].startswith(("Custom::", "AWS::Lambda::")) and "KubectlProvider" not in logical_id
    }
    return {**template, "Resources": kept}


@pytest.mark.parametrize("kind", ["archive", "network", "storage", "cluster", "capacity"])
def test_the_preset_is_as_it_was(matrix: Matrix, kind: str) -> None:
    found = without_what_others_own(matrix.templates(PRESET).by_kind[kind])
    assert found == golden(f"{PRESET}/{kind}.json", found)
