"""Options of the benchmarks, and the start of one process a rank."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

ARMS = ("steadfast-device", "steadfast-host", "sync", "nvrx", "dcp")


def parse(description: str | None) -> argparse.Namespace:
    """Options, those of `--quick` put in."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", default="results")
    add("--quick", action="store_true", help="small, on CPU")
    add("--cpu", action="store_true")
    add("--ranks", type=int, default=0, help="default: every GPU; 1 on CPU")
    add("--arms", default=",".join(ARMS))
    add("--repeats", type=int, default=3)
    add("--intervals", type=int, default=5, help="with a save in a window, those without around them")
    add("--often", default="steadfast-device", help="arms that run in every repeat; the others in the last")
    add("--few-intervals", type=int, default=2, help="with a save, of the other arms")
    add("--heat-s", type=float, default=8.0, help="of training before a window is timed")
    add("--interval-steps", type=int, default=0, help="0: from a measured synchronous save")
    add("--sync-efficiency", type=float, default=0.60)
    add("--reference-steps", type=int, default=30)
    add("--minutes", type=float, default=8.5)
    add("--host-slots", type=int, default=2)
    add("--vocab", type=int, default=32000)
    add("--dim", type=int, default=2048)
    add("--layers", type=int, default=13)
    add("--heads", type=int, default=16)
    add("--batch", type=int, default=8)
    add("--length", type=int, default=1024)
    add("--work", default="")
    add("--shm", default="")
    add("--seed", type=int, default=os.getpid())
    add("--started-s", type=float, default=time.time())
    options = parser.parse_args()
    options.often = options.often.split(",")
    if options.quick:
        small = {"cpu": True, "vocab": 256, "dim": 128, "layers": 2, "heads": 4, "batch": 2, "length": 64}
        few = {
            "intervals": 2,
            "repeats": 2,
            "reference_steps": 10,
            "interval_steps": 12,
            "minutes": 4.0,
            "heat_s": 0.0,
        }
        vars(options).update({**small, **few})
    return options


def start(options: argparse.Namespace, script: str) -> int:
    """Run `script` once a rank, in directories of its own that are removed afterwards; the worst exit code."""
    cuda = torch.cuda.is_available() and not options.cpu
    ranks = options.ranks or (torch.cuda.device_count() if cuda else 1)
    work = Path(options.work or Path.cwd() / f"bench-{options.seed}")
    shm = Path(options.shm or f"/dev/shm/bench-{options.seed}")
    work.mkdir(parents=True)
    shm.mkdir(parents=True)
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    fixed = ["--work", work, "--shm", shm, "--started-s", options.started_s, "--seed", options.seed]
    children = [
        subprocess.Popen(
            [sys.executable, script, *sys.argv[1:], *map(str, fixed)],
            env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks), "MASTER_PORT": str(store.port)},
        )
        for r in range(ranks)
    ]
    try:
        return max(child.wait() for child in children)
    finally:
        for child in children:
            child.kill()
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)
