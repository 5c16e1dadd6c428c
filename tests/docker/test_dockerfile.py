"""The image cannot be built here; what it is made from can be read, linted and installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from k8s.pod_security import GROUP_ID, USER_ID

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
INSTRUCTIONS = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")


def value(pattern: str) -> str:
    found = re.findall(pattern, INSTRUCTIONS, flags=re.MULTILINE)
    assert len(found) == 1, (pattern, found)
    return str(found[0])


def pins(path: str) -> dict[str, Version]:
    """Package name to version of every exact pin."""
    lines = (ROOT / path).read_text().splitlines()
    found = [re.match(r"([A-Za-z0-9_.\[\],-]+)==([^\s\\;]+)", line) for line in lines]
    return {Requirement(match[1]).name.lower().replace("_", "-"): Version(match[2]) for match in found if match}


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    result = subprocess.run([hadolint, ROOT / "docker/Dockerfile"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, "")


def test_nothing_that_moves() -> None:
    assert re.fullmatch(r"nvcr\.io/nvidia/pytorch:\d\d\.\d\d-py3", value(r"^ARG BASE=(.*)$"))
    assert ":latest" not in INSTRUCTIONS
    assert re.findall(r"^FROM (\S+)", INSTRUCTIONS, flags=re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert "git clone" not in INSTRUCTIONS


def test_the_plugin_is_new_enough_checked_and_chosen() -> None:
    assert Version(value(r"^ARG AWS_OFI_NCCL=(.*)$")) >= Version("1.20.0")
    assert re.fullmatch(r"[0-9a-f]{128}", value(r"^ARG AWS_OFI_NCCL_SHA512=(.*)$"))
    assert "sha512sum --check" in INSTRUCTIONS
    prefix = value(r"--prefix=(\S+)")
    assert value(r"^ENV NCCL_NET_PLUGIN=(.*)$").startswith(f"{prefix}/lib/")
    assert value(r"^COPY --from=plugin (\S+) ") == prefix


def test_code_comes_last_and_nvrx_before_it() -> None:
    layers = [
        INSTRUCTIONS.index(text) for text in ("docker/nvrx.lock", "docker/requirements.lock", "COPY trainer")
    ]
    assert layers == sorted(layers)


def test_pods_run_as_the_images_user() -> None:
    assert value(r"^USER (.*)$") == f"{USER_ID}:{GROUP_ID}"


def test_every_install_is_by_hash_and_only_of_wheels() -> None:
    installs = re.findall(r"pip install.*", INSTRUCTIONS)
    assert len(installs) == 2
    for line in installs:
        for flag in ("--require-hashes", "--no-deps", "--only-binary=:all:", "--target"):
            assert flag in line


def test_the_context_is_what_is_copied() -> None:
    allowed = {
        line[1:]
        for line in (ROOT / "docker/Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = re.findall(r"^COPY (?!--from)(\S+) ", INSTRUCTIONS, flags=re.MULTILINE)
    assert set(copied) == allowed
    assert all((ROOT / path).exists() for path in copied)


def test_the_container_gets_the_versions_that_the_tests_ran_with() -> None:
    tested = pins("requirements.in")
    ours = pins("docker/requirements.in")
    assert {name: tested[name] for name in ours} == ours
    locked = pins("docker/requirements.lock")
    assert {name: locked[name] for name in ours} == ours
    assert pins("docker/nvrx.lock") == {"nvidia-resiliency-ext": Version("0.7.0")}
    makefile = (ROOT / "Makefile").read_text()
    assert "nvidia-resiliency-ext==0.7.0" in makefile


def test_torch_comes_with_the_base_image_alone() -> None:
    locked = pins("docker/requirements.lock")
    assert not [
        name for name in locked if name == "torch" or name.startswith(("triton", "nvidia-c", "nvidia-nccl"))
    ]
    assert "fastapi" not in locked


def test_locks_name_no_address() -> None:
    for name in ("docker/requirements.lock", "docker/nvrx.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text
        assert "--index" not in text
