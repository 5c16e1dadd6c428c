"""The control pod's entry, around a small program that stands where nvrx-control is."""

import os
import subprocess
import sys
import textwrap
import time

import pytest

from trainer import store_host
from trainer.exit_codes import ExitCode
from trainer.paths import RunPaths
from trainer.resilience import progress

pytestmark = pytest.mark.unit


def start_store_host(paths: RunPaths, program: str) -> subprocess.Popen:
    script = paths.root / "control.py"
    script.write_text(textwrap.dedent(program))
    starter = (
        "import sys; from trainer import store_host; "
        f"store_host.CONTROL = ({sys.executable!r}, {str(script)!r}); sys.exit(store_host.main(['--']))"
    )
    variables = {
        "STEADFAST_RUN": "run",
        "STEADFAST_RUN_DIR": str(paths.root),
        "STEADFAST_DATA_DIR": "/",
        "STEADFAST_SHM_DIR": "/",
        "STEADFAST_CONFIG": '{"loop": {"steps": 10}}',
        "POD_NAME": "c",
        "POD_IP": "127.0.0.1",
        "NODE_NAME": "n",
    }
    return subprocess.Popen([sys.executable, "-c", starter], env={**os.environ, **variables})


CONTROL = "import pathlib, time; pathlib.Path({root!r}, 'starts').open('a').write('x'); time.sleep({life})"


def test_the_store_host_starts_its_store_again_and_ends_with_the_run(paths: RunPaths) -> None:
    process = start_store_host(paths, CONTROL.format(root=str(paths.root), life=0.1))
    starts = paths.root / "starts"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (not starts.exists() or len(starts.read_text()) < 2):
        time.sleep(0.05)
    progress.write_completion(paths, {"step": 10})
    assert process.wait(20) == 0 and len(starts.read_text()) >= 2


def test_the_store_host_told_to_go_does_not_claim_completion(paths: RunPaths) -> None:
    process = start_store_host(paths, CONTROL.format(root=str(paths.root), life=60))
    starts = paths.root / "starts"
    while not starts.exists():
        time.sleep(0.05)
    process.terminate()
    assert process.wait(20) == ExitCode.PLANNED_STOP
    assert store_host.LAST_READERS_S > 3  # nvrx-control's own grace for readers of its store
