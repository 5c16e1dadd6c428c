"""The node check's figures and verdicts."""

import json
import os
import subprocess
import sys

import pytest

from trainer.bandwidth import CPU_BARS, Result, provider_problem

EFA = "node:12:34 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 32 nics)\n"
SOCKET = "node:12:34 [0] NCCL INFO NET/Socket : Using [0]pod-id-link0:169.254.170.23<0>\n"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("log", "words"), [(EFA, None), (SOCKET, "pod-id-link0"), (EFA + SOCKET, "sockets"), ("", "does not name")]
)
def test_only_a_named_provider_is_good_enough(log: str, words: str | None) -> None:
    """aws-do-eks#54: the same exit code 0 over EFA and over a link-local socket."""
    problem = provider_problem(log)
    assert problem is None if words is None else words in str(problem)


@pytest.mark.unit
def test_a_bar_is_met_or_not() -> None:
    assert Result(1 << 27, 289.0, 280.0).met and not Result(1 << 27, 77.0, 280.0).met


@pytest.mark.integration
@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_two_ranks_are_measured_and_bars_decide(factor: float) -> None:
    code = (
        "import trainer.bandwidth as b, sys; "
        f"b.CPU_BARS = {{size: bar * {factor} for size, bar in b.CPU_BARS.items()}}; sys.exit(b.main())"
    )
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"),
        *(sys.executable, "-c", code),
    ]
    environment = {**os.environ, "STEADFAST_BARS": "{}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("{"))
    rows = json.loads(line)["bandwidth"]
    assert [row["size_bytes"] for row in rows] == sorted(CPU_BARS)
    assert all(row["met"] is (factor == 1.0) for row in rows)
    assert (done.returncode == 0) is (factor == 1.0)
