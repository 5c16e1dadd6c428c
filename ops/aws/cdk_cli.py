"""The CDK command line as a child process, its progress passed on line by line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ops.aws.access import Aws, child_environment
from ops.errors import CloudError, InvalidInputError

PROJECT_ROOT = Path(__file__).parent.parent.parent
CDK = PROJECT_ROOT / "node_modules" / ".bin" / "cdk"
TELLING = re.compile(r"_(COMPLETE|FAILED)\b|ROLLBACK|✅|❌|[Ee]rror|Failed|denied")
TAIL_LINES = 15


def cdk(aws: Aws, arguments: Sequence[str], say: Callable[[str], None]) -> None:
    """Run `cdk …` to its end. Raises CloudError with its last lines, InvalidInputError if it is not installed."""
    if not CDK.exists():
        raise InvalidInputError(
            f"{CDK} is not there", fix="`make setup` installs it; it needs Node.js 20 or newer"
        )
    child = subprocess.Popen(
        [str(CDK), *arguments],
        cwd=PROJECT_ROOT,
        env=child_environment(aws),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    lines: list[str] = []
    try:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line.rstrip())
            if TELLING.search(line):
                say(line.strip())
        code = child.wait()
    except BaseException:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait()
        raise
    if code:
        told = [line for line in lines if line.strip()]
        raise CloudError(f"cdk {arguments[0]} ended with {code}", details=told[-TAIL_LINES:])
