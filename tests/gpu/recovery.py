"""Recovery over NCCL (or gloo): medians of many faults a class, layer by layer. Prints a table, writes JSON.

`python tests/gpu/recovery.py --out DIR [--launchers 1] [--ranks 1] [--repeats 10] [--classes exception,sigkill]`
Each class is one run; its faults lie a fixed number of steps apart, on ranks in turn, rank 0 included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parents[2])]

import pods  # noqa: E402
import torch  # noqa: E402

from ops.report.run_directory import load_run  # noqa: E402
from trainer.config import TrainConfig  # noqa: E402
from trainer.faults.schema import Fault  # noqa: E402

SIZES: dict[str, dict[str, int]] = {
    "toy": {"dim": 128, "num_layers": 4, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 352},
    "1b": {
        "dim": 2048,
        "num_layers": 18,
        "num_heads": 16,
        "num_kv_heads": 8,
        "ffn_dim": 6144,
        "vocab_size": 32768,
    },
    "1.5b": {
        "dim": 2048,
        "num_layers": 27,
        "num_heads": 16,
        "num_kv_heads": 8,
        "ffn_dim": 6144,
        "vocab_size": 32768,
    },
}
SPACING, FIRST = 12, 8
COLUMNS = ("detect_s", "restart_s", "recovery_s", "new_ground_s", "lost_steps")


def configuration(args: argparse.Namespace) -> TrainConfig:
    """One run a class: as many steps as its faults need."""
    gpu = torch.cuda.is_available()
    return TrainConfig.model_validate(
        {
            "model": SIZES[args.model],
            "data": {"sequence_length": 1024 if args.model != "toy" else 64, "global_batch_size": 8},
            "loop": {"steps": FIRST + SPACING * (args.repeats + 1), "eval_every": 0, "micro_batch_size": 1},
            "checkpoint": {"persist_every": 10, "snapshot_every": 2},
            "recovery": {
                "in_process": args.in_process,
                "collective_timeout_s": args.collective_timeout_s or (10.0 if gpu else 4.0),
                "heartbeat_timeout_s": args.heartbeat_timeout_s or (60.0 if gpu else 20.0),
                "termination_grace_s": 120,
                "start_timeout_s": 180,
            },
        }
    )


def faults_of(kind: str, repeats: int, world_size: int) -> list[Fault]:
    """Ranks in turn, the last first, so that rank 0 is among them however few there are."""
    entries = [
        {"id": f"{kind.replace('_', '-')}-{n}", "class": kind, "rank": (world_size - 1 - n) % world_size}
        | {"step": FIRST + SPACING * n}
        for n in range(repeats)
    ]
    return [Fault.model_validate(entry) for entry in entries]


def run_class(kind: str, args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """One run with `repeats` faults of a class; its figures, or what went wrong."""
    config = configuration(args)
    world_size = args.launchers * args.ranks
    pods.write_data(root / "fsx" / "data", vocab_size=config.model.vocab_size)
    devices = [",".join(str(n * args.ranks + r) for r in range(args.ranks)) for n in range(args.launchers)]
    job = pods.Job(
        root,
        config,
        nodes=args.launchers,
        ranks_per_node=args.ranks,
        faults=faults_of(kind, args.repeats, world_size),
        environment={"NCCL_NVLS_ENABLE": "0", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_RAS_ENABLE": "0"},
        gpus=devices if torch.cuda.is_available() else (),
    )
    began_s = time.monotonic()
    with pods.running(job):
        codes = job.wait(args.class_timeout_s)
    faults = [fault.model_dump(by_alias=True) for fault in load_run(job.paths.root).summary().faults]
    reached = job.paths.completion.exists()
    return {
        "class": kind,
        "wall_s": time.monotonic() - began_s,
        "codes": codes,
        "reached_target": reached,
        "recovered": sum(fault["recovered"] for fault in faults),
        "injected": len(faults),
        "expected": args.repeats,
        "layers": sorted({str(fault["layer"]) for fault in faults}),
        "median": {column: _median(faults, column) for column in COLUMNS},
        "max": {column: _most(faults, column) for column in COLUMNS},
        "faults": faults,
        "logs": None if reached else job.logs(60),
    }


def _values(faults: Sequence[dict[str, Any]], column: str) -> list[float]:
    return [fault[column] for fault in faults if fault[column] is not None]


def _median(faults: Sequence[dict[str, Any]], column: str) -> float | None:
    values = _values(faults, column)
    return statistics.median(values) if values else None


def _most(faults: Sequence[dict[str, Any]], column: str) -> float | None:
    return max(_values(faults, column), default=None)


def main() -> int:
    """0 when every fault of every class was recovered and every run reached its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--launchers", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=1, help="ranks (GPUs) a launcher")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--classes", default="exception,collective_hang,sigstop,sigkill,oom")
    parser.add_argument("--model", choices=SIZES, default="1b" if torch.cuda.is_available() else "toy")
    parser.add_argument("--in-process", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--collective-timeout-s", type=float)
    parser.add_argument("--heartbeat-timeout-s", type=float)
    parser.add_argument("--class-timeout-s", type=float, default=300)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    results = []
    for kind in args.classes.split(","):
        with tempfile.TemporaryDirectory(prefix=f"{kind}-") as root:
            results.append(run_class(kind, args, Path(root)))
        (args.out / "recovery.json").write_text(json.dumps(results, indent=1))
        _print(results[-1])
    return 0 if all(r["reached_target"] and r["recovered"] == r["expected"] for r in results) else 1


def _print(result: dict[str, Any]) -> None:
    figures = " ".join(f"{column} {value:.2f}" for column, value in result["median"].items() if value is not None)
    print(
        f"{result['class']}: recovered {result['recovered']}/{result['expected']} by {result['layers']} "
        f"target {'reached' if result['reached_target'] else 'NOT reached'} {result['wall_s']:.0f} s | {figures}",
        flush=True,
    )
    if result["logs"]:
        print(result["logs"], flush=True)


if __name__ == "__main__":
    sys.exit(main())
