"""The image's Python part, installed for its platform: CPython 3.12, x86_64, glibc 2.39."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(280)]
ROOT = Path(__file__).parents[2]
# pip takes a newer tag for that tag alone, so every one that glibc 2.39 covers and wheels use.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 34, 31, 28, 27, 26, 24, 17, 12, 5)]
PLATFORMS += ["manylinux2014_x86_64", "manylinux1_x86_64"]
OF_THE_BASE_IMAGE = {"torch"}
OF_NVRX_SERVICES = {"fastapi", "uvicorn", "slowapi", "grpcio-tools", "pydantic-settings"}
"""Declared by nvidia-resiliency-ext, imported only by its attribution services."""
PYTHON_3_12 = {
    "python_version": "3.12",
    "python_full_version": "3.12.3",
    "platform_python_implementation": "CPython",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "extra": "",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> list[Distribution]:
    target = tmp_path_factory.mktemp("image")
    for lock in ("nvrx.lock", "requirements.lock"):
        platforms = [option for platform in PLATFORMS for option in ("--platform", platform)]
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
                *("--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile"),
                *("--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "abi3"),
                *("--abi", "none", *platforms),
                *("--target", str(target / lock), "--requirement", str(ROOT / "docker" / lock)),
            ],
            check=True,
            timeout=240,
        )
    return [
        item for lock in ("nvrx.lock", "requirements.lock") for item in distributions(path=[str(target / lock)])
    ]


def test_nothing_is_missing_but_what_the_base_image_has(installed: list[Distribution]) -> None:
    have = {_plain(item.name): item.version for item in installed}
    missing = set()
    for item in installed:
        for text in item.requires or []:
            need = Requirement(text)
            if need.marker and not need.marker.evaluate(PYTHON_3_12):
                continue
            name = _plain(need.name)
            if name in OF_THE_BASE_IMAGE or (
                name in OF_NVRX_SERVICES and _plain(item.name).startswith("nvidia-res")
            ):
                continue
            if name not in have or not need.specifier.contains(have[name], prereleases=True):
                missing.add(f"{item.name} wants {need}; have {have.get(name)}")
    assert not missing


def test_binaries_are_for_the_images_python(installed: list[Distribution]) -> None:
    libraries = [file.name for item in installed for file in item.files or [] if file.suffix == ".so"]
    ours = [name for name in libraries if ".cpython-" in name]
    assert any(name.startswith("nvrx_cupti_module") for name in ours)
    assert {name.split(".cpython-")[1][:3] for name in ours} == {"312"}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")
