"""`check --nodes`: all-reduce over the nodes against size-specific bars. Run by torchrun on every node.

Bus bandwidth is `2 (n - 1) / n · bytes / seconds` (nccl-tests, PERFORMANCE.md): what each link carries, whatever
the number of ranks. A bar is met by the slowest rank's median.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

WARMUP, REPEATS = 5, 20
SIZES = (1 << 26, 1 << 28, 1 << 30)
"""Where the table has no bars."""
CPU_BARS = {1 << 20: 0.02, 1 << 24: 0.05}
"""GB/s over gloo on one machine: far below a healthy one, far above one that swaps."""
EFA_LINES = ("Selected provider is efa", "Using network Libfabric", "NET/OFI Selected Provider is efa")
SOCKET_LINES = ("NET/Socket : Using", "Using network Socket")


@dataclass(frozen=True)
class Result:
    """One message size. Bandwidths in GB/s, 10^9 bytes."""

    size_bytes: int
    bus_gb_s: float
    bar_gb_s: float

    @property
    def met(self) -> bool:
        """At or above the bar."""
        return self.bus_gb_s >= self.bar_gb_s


def measure_s(size_bytes: int, device: torch.device) -> float:
    """Median seconds of an all-reduce of fp32 values; of the slowest rank."""
    tensor = torch.ones(size_bytes // 4, device=device)
    seconds = []
    for number in range(WARMUP + REPEATS):
        dist.barrier()
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin_s = time.perf_counter()
        dist.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= WARMUP:
            seconds.append(time.perf_counter() - begin_s)
    slowest = torch.tensor(statistics.median(seconds), dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def measure(bars: dict[int, float], device: torch.device) -> list[Result]:
    """Every size of `bars`, ascending."""
    share = 2 * (dist.get_world_size() - 1) / dist.get_world_size()
    return [Result(size, share * size / measure_s(size, device) / 1e9, bar) for size, bar in sorted(bars.items())]


def provider_problem(log: str) -> str | None:
    """What NCCL's log says against the transport: only a line that names EFA is good enough (nccl#229)."""
    for line in log.splitlines():
        if any(mark in line for mark in SOCKET_LINES):
            return f"NCCL fell back to sockets: {line.strip()}"
    if not any(mark in log for mark in EFA_LINES):
        return "NCCL's log does not name the EFA provider"
    return None


def main() -> int:
    """0: every bar is met over the right transport; 1: not, or there are none. Rank 0 prints one JSON object."""
    device = (
        torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    )
    nccl_log = Path(f"{os.environ.get('TMPDIR', '/tmp')}/nccl.{os.getpid()}.log")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        os.environ["NCCL_DEBUG_FILE"] = str(nccl_log)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    bars = {int(size): bar for size, bar in json.loads(os.environ["STEADFAST_BARS"]).items()}
    bars = bars if device.type == "cuda" else CPU_BARS
    results = measure(bars or dict.fromkeys(SIZES, 0.0), device)
    crosses_nodes = dist.get_world_size() > int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    problem = None if bars else "no bars are known for this instance type: measured, not judged"
    if device.type == "cuda" and crosses_nodes:
        problem = provider_problem(nccl_log.read_text(errors="replace")) or problem
    good = all(result.met for result in results) and problem is None
    if dist.get_rank() == 0:
        rows = [asdict(result) | {"met": result.met} for result in results]
        print(json.dumps({"bandwidth": rows, "problem": problem, "device": device.type}), flush=True)
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
