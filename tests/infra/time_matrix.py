"""How long an environment of the matrix takes, all of them in one process.

    python tests/infra/time_matrix.py [NUMBER]

NUMBER of environments besides the first; all if not given. The first stands apart: it starts Node, loads CDK's
classes and makes the validator's engine. CPU seconds say more than wall seconds where the machine is shared.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TypeVar

import psutil
from conftest import Matrix, matrix_environments, synthesize
from test_matrix import broken_rules, different_templates, lint

T = TypeVar("T")


def cpu_s() -> tuple[float, float]:
    """Seconds of this process, and of the Node processes below it."""
    own = psutil.Process()
    below = [child.cpu_times() for child in own.children(recursive=True)]
    return sum(own.cpu_times()[:2]), sum(times.user + times.system for times in below)


def timed(name: str, number: int, action: Callable[[], T]) -> T:
    """Run, and print seconds per environment."""
    start_s, before = time.perf_counter(), cpu_s()
    result = action()
    wall_s, after = time.perf_counter() - start_s, cpu_s()
    python_s, node_s = ((then - now) / number for now, then in zip(before, after, strict=True))
    print(f"{name:45} {wall_s / number:9.3f} {python_s + node_s:9.3f} {python_s:9.3f} {node_s:9.3f}", flush=True)
    return result


def describe() -> None:
    """Machine and versions."""
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    tools = ", ".join(f"{name} {version(name)}" for name in ("aws-cdk-lib", "cdk-nag", "cfn-lint", "jsii"))
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "")
    print(f"{model.rpartition(':')[2].strip()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"Python {platform.python_version()}, Node {node}, {tools}")


def main(number: int | None) -> None:
    """Print the table."""
    describe()
    environments = matrix_environments()
    first = dict(islice(environments.items(), 1))
    rest = dict(islice(environments.items(), 1, None if number is None else number + 1))
    print(f"\n{'seconds per environment':45} {'wall':>9} {'CPU':>9} {'Python':>9} {'Node':>9}")
    with tempfile.TemporaryDirectory() as scratch:
        timed("the first", 1, lambda: synthesize(first, Path(scratch, "first")))
        count = len(rest)
        name = f"synthesis, CDK's validator, cdk-nag ({count})"
        matrix: Matrix = timed(name, count, lambda: synthesize(rest, Path(scratch, "rest")))
        timed("our rules", count, lambda: broken_rules(matrix))
        chosen = different_templates(matrix)
        timed(f"cfn-lint ({len(chosen)} templates that differ)", count, lambda: lint(matrix, chosen))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
