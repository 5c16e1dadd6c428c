"""Both ways to the templates: in-process and by the CDK command line; and what is refused on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from environments.environment import InvalidEnvironmentError, find, load, names
from infra.app import build, run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
NEGATIVE = sorted((ROOT / "tests" / "environments" / "negative").glob("*.yaml"))
KINDS = ("archive", "network", "storage", "cluster", "capacity")


@pytest.mark.parametrize("environment", [None, "", "nope"])
def test_absent_or_unknown_lists_the_names(environment: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(environment) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in names())
    assert "Traceback" not in error


@pytest.mark.parametrize("path", NEGATIVE, ids=lambda path: path.stem)
def test_a_negative_file_ends_with_2_and_its_messages(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(path)) == 2
    lines = capsys.readouterr().err.splitlines()
    expected = [line.removeprefix("# expected: ") for line in path.read_text().splitlines() if "# exp" in line]
    assert [line.strip() for line in lines[1:]] == expected
    assert str(path) in lines[0]


def test_the_command_line_names_them_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.app"]
    context = {**os.environ, "CDK_CONTEXT_JSON": json.dumps({"environment": "nope"})}
    result = subprocess.run(command, cwd=ROOT, env=context, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith("nope: 1 problem\n") and "two-node-p5" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_zone_still_to_be_asked_for_does_not_synthesize(tmp_path: Path) -> None:
    waiting = load(find("eight-node-p5")).model_copy(update={"availability_zone": "from-reservation"})
    with pytest.raises(InvalidEnvironmentError, match="check eight-node-p5 --write"):
        build(waiting, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_both_ways_give_the_same_bytes_without_credentials_or_network(tmp_path: Path) -> None:
    """And twice the same: nothing in a template depends on when or where it was made."""
    for number in ("first", "second"):
        build(load(find("local")), tmp_path / number)
    npx = shutil.which("npx")
    assert npx
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    environment |= {"HOME": str(tmp_path), "CDK_DISABLE_CLI_TELEMETRY": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [npx, "cdk", "synth", "--quiet", "-c", "environment=local", "--output", str(tmp_path / "cli")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, timeout=500)
    for kind in KINDS:
        name = f"local-{kind}.template.json"
        first = (tmp_path / "first" / name).read_bytes()
        assert first == (tmp_path / "second" / name).read_bytes()
        assert first == (tmp_path / "cli" / name).read_bytes()


def test_storage_and_cluster_are_protected_and_in_order(tmp_path: Path) -> None:
    """Only `steadfast destroy` lifts it, after the archive check."""
    build(load(find("local")), tmp_path)
    artifacts = json.loads((tmp_path / "manifest.json").read_text())["artifacts"]
    stacks = {
        name: artifact for name, artifact in artifacts.items() if artifact["type"] == "aws:cloudformation:stack"
    }
    protected = {name for name, stack in stacks.items() if stack["properties"].get("terminationProtection")}
    assert protected == {"local-storage", "local-cluster"}
    needs = {name: set(stack["dependencies"]) & set(stacks) for name, stack in stacks.items()}
    assert needs["local-capacity"] >= {"local-cluster"}
    assert needs["local-cluster"] >= {"local-storage"}
    assert needs["local-storage"] >= {"local-network", "local-archive"}
    assert needs["local-archive"] == needs["local-network"] == set()
