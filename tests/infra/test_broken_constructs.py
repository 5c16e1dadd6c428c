"""Constructs broken one at a time: each must be refused at synthesis, by name and with its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest

from environments.environment import find, load
from infra import addons, gpu_nodes, lustre
from infra.app import build, context
from infra.template_rules import InvalidTemplateError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def refused(folder: Path) -> str:
    with pytest.raises(InvalidTemplateError) as error:
        build(load(find("local")), folder)
    return "\n".join(error.value.problems)


def test_a_file_system_that_may_precede_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lustre.LustreFileSystem._build_rules
    monkeypatch.setattr(lustre.LustreFileSystem, "_build_rules", lambda self, clients: right(self, clients)[1:])
    assert "fsx-csi#32" in refused(tmp_path)


def test_a_file_system_with_988_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lustre, "LUSTRE_PORTS", ((988, 988),))
    assert "1018-1023" in refused(tmp_path)


def test_interfaces_without_the_efa_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu_nodes.GpuNodes._interfaces
    monkeypatch.setattr(
        gpu_nodes.GpuNodes, "_interfaces", lambda self, groups: right(self, [groups[0], groups[2]])
    )
    assert "fall back to TCP" in refused(tmp_path)


def test_add_ons_without_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = addons.Addons._add

    def without_version(self: addons.Addons, *arguments: Any) -> Any:
        addon = right(self, *arguments)
        addon.addon_version = None
        return addon

    monkeypatch.setattr(addons.Addons, "_add", without_version)
    assert "without a version" in refused(tmp_path)


def test_an_error_of_cdks_own_validator_ends_the_synthesis(tmp_path: Path) -> None:
    app = cdk.App(outdir=str(tmp_path), analytics_reporting=False, post_cli_context=context())
    stack = cdk.Stack(app, "broken")
    cdk.CfnResource(stack, "Files", type="AWS::FSx::FileSystem", properties={"SubnetIds": ["subnet-1"]})
    with pytest.raises(RuntimeError, match="ValidationFailed"):
        app.synth()
    assert "FileSystemType" in (tmp_path / "validation-report.json").read_text(encoding="utf-8")
