"""Parts of `run_host.sh`: nodes that go and come back, who holds GPU memory, resharding, and what links carry.

`python tests/gpu/host_parts.py {nodes,holder,reshard,rates} --out DIR [--gpus 2] [--model 1.5b]`
On a machine without GPUs every part runs on CPU ranks, so that the script is known to work before it meets one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parents[2])]

import pods  # noqa: E402
import psutil  # noqa: E402
import recovery  # noqa: E402
import torch  # noqa: E402

from trainer.config import TrainConfig  # noqa: E402

START_S, END_S = 120.0, 180.0
COPY_BYTES = 2 << 30 if torch.cuda.is_available() else 64 << 20


def configuration(model: str, steps: int) -> TrainConfig:
    """As in the recovery script, with steps to spare."""
    args = argparse.Namespace(
        model=model, repeats=1, in_process=True, collective_timeout_s=None, heartbeat_timeout_s=None
    )
    config = recovery.configuration(args)
    return config.model_copy(update={"loop": config.loop.model_copy(update={"steps": steps})})


def make_job(root: Path, config: TrainConfig, *, nodes: int, ranks: int, spares: int = 0) -> pods.Job:
    """A job whose pods have `ranks` GPUs each, in order; a spare shares the last pod's."""
    if not (root / "fsx" / "data").exists():
        pods.write_data(root / "fsx" / "data", vocab_size=config.model.vocab_size)
    gpus = []
    if torch.cuda.is_available():
        last = max(torch.cuda.device_count() // ranks - 1, 0)
        owned = [min(number, last) for number in range(nodes + spares)]
        gpus = [",".join(str(pod * ranks + rank) for rank in range(ranks)) for pod in owned]
    return pods.Job(
        root,
        config,
        nodes=nodes,
        spares=spares,
        ranks_per_node=ranks,
        environment={"NCCL_NVLS_ENABLE": "0", "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "NCCL_RAS_ENABLE": "0"},
        gpus=gpus,
    )


def stepped(job: pods.Job, number: int, attempt: int = 0) -> Callable[[Any], bool]:
    """Some rank did step `number` in an attempt after `attempt`."""
    return lambda _: any(
        record["step"] >= number and record["attempt"] > attempt for record in job.records("step")
    )


def nodes(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Two launchers stand for two nodes: one is killed and comes back as the Job's new pod would."""
    ranks = max(1, args.gpus // 2)
    job = make_job(root, configuration(args.model, 400), nodes=2, ranks=ranks)
    with pods.running(job):
        job.until(stepped(job, 12), START_S)
        lost_s = time.monotonic()
        job.kill_pod("pod-1")
        job.start_pod(1)
        job.until(stepped(job, 1, attempt=1), START_S)
        again = [r for r in job.records("step") if r["attempt"] > 1]
        started = [r["mono_s"] for r in job.records("launch_started") if r["mono_s"] > lost_s]
    first_s = min(record["end_s"] for record in again)
    return {
        "launchers": 2,
        "ranks_per_launcher": ranks,
        "lost_to_first_step_s": first_s - lost_s,
        "pod_started_to_first_step_s": first_s - started[0] if started else None,
        "resumed_at": min(record["step"] for record in again) - 1,
        "tier": sorted({r["tier"] for r in job.records("restored") if r["attempt"] > 1}),
    }


def reshard(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Saved at n ranks, loaded at 1, trained on, saved, loaded at n: the same hash of all parameters each time."""
    sizes = sorted({args.gpus, max(1, args.gpus // 2), 1}, reverse=True)
    rounds = []
    for number, (saver, loader) in enumerate([*pairwise(sizes), (sizes[-1], sizes[0])], start=1):
        saved = _to_target(root, args.model, saver, 12 * number)
        loaded = _to_target(root, args.model, loader, 12 * number)
        rounds.append({"saved_at": saver, "loaded_at": loader, "equal": saved == loaded, "sha256": saved})
    return {"rounds": rounds, "all_equal": all(entry["equal"] for entry in rounds)}


def _to_target(root: Path, model: str, ranks: int, steps: int) -> str:
    """Run (or only load, if the target is reached already) at this many ranks; the hash of the parameters."""
    job = make_job(root, configuration(model, steps), nodes=1, ranks=ranks)
    job.paths.completion.unlink(missing_ok=True)
    with pods.running(job):
        codes = job.wait(END_S)
    if set(codes.values()) != {0}:
        raise RuntimeError(f"{ranks} ranks to step {steps}: {codes}\n{job.logs(60)}")
    return str(job.completion()["params_sha256"])


def rates(args: argparse.Namespace, _root: Path) -> dict[str, Any]:
    """All-reduce bus bandwidth by size; pinned device-to-host copies, one GPU at a time and all at once: GB/s."""
    reduced = all_reduce_rates(args.gpus)
    if not torch.cuda.is_available():
        return {"all_reduce": reduced, "device_to_host_gb_s": None, "reason": "no GPU"}
    count = min(args.gpus, torch.cuda.device_count())
    sources = [torch.empty(COPY_BYTES, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in range(count)]
    targets = [torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
    alone = [_copy_rate([sources[gpu]], [targets[gpu]]) for gpu in range(count)]
    together = _copy_rate(sources, targets)
    return {"all_reduce": reduced, "bytes": COPY_BYTES, "alone_gb_s": alone, "together_gb_s": together}


def all_reduce_rates(gpus: int) -> list[dict[str, Any]]:
    """What `check --nodes` measures, on this host alone."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}"]
    ended = subprocess.run(
        [*command, "-m", "trainer.bandwidth"],
        env={**os.environ, "STEADFAST_BARS": "{}"},
        cwd=pods.PROJECT,
        capture_output=True,
        text=True,
    )
    line = next((line for line in ended.stdout.splitlines() if '"bandwidth"' in line), None)
    if line is None:
        raise RuntimeError(f"all-reduce ended with {ended.returncode}: {ended.stderr[-2000:]}")
    rows: list[dict[str, Any]] = json.loads(line)["bandwidth"]
    return rows


def _copy_rate(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> float:
    seconds = []
    for number in range(6):
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)
        for source in sources:
            torch.cuda.synchronize(source.device)
        if number:
            seconds.append(time.perf_counter() - begin_s)
    return sum(source.nbytes for source in sources) / statistics.median(seconds) / 1e9


ORPHAN = (
    "import sys, time, torch; held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device='cuda'); "
    "print('held', flush=True); time.sleep(300)"
)
ORPHAN_BYTES = 2 << 30


def holder(args: argparse.Namespace, root: Path) -> dict[str, Any]:
    """A process of the pod keeps GPU memory when its rank is killed: it is named and ended, and training goes on.

    Also whether the rank's checkpoint writer was forked: it has then no GPU of its own.
    """
    if not torch.cuda.is_available():
        return {"reason": "no GPU"}
    config = configuration(args.model, 40)
    job = make_job(root, config, nodes=1, ranks=1)
    job.faults = recovery.faults_of("sigkill", 1, 1)
    environment = {**os.environ, "POD_UID": "pod-0", "CUDA_VISIBLE_DEVICES": job.gpus[0]}
    command = [sys.executable, "-c", ORPHAN, str(ORPHAN_BYTES)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as orphan:
        assert orphan.stdout is not None
        orphan.stdout.readline()
        try:
            with pods.running(job):
                job.until(stepped(job, 4), START_S)
                writers = _writers()
                codes = job.wait(END_S)
        finally:
            orphan.kill()
    (fault,) = job.records("fault_injected")
    back = [record["end_s"] for record in job.records("step") if record["attempt"] > 1]
    return {
        "codes": codes,
        "orphan": {"pid": orphan.pid, "returncode": orphan.returncode},
        "said": [record["detail"] for record in job.records("gpu_memory_held")],
        "fault_to_first_step_s": min(back) - fault["mono_s"] if back else None,
        "writers": writers,
        "logs": job.logs(60) if set(codes.values()) != {0} else None,
    }


def _writers() -> list[dict[str, Any]]:
    """Checkpoint writers, with what they hold."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == "steadfast-save":
                opened = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
                gpus = sorted({name for name in opened if "nvidia" in name})
                resident_mib, own_mib = (part >> 20 for part in _memory_of(process))
                found.append({"gpus": gpus, "resident_mib": resident_mib, "own_mib": own_mib})
        except (psutil.Error, OSError):
            continue
    return found


def _memory_of(process: psutil.Process) -> tuple[int, int]:
    memory = process.memory_full_info()
    return memory.rss, memory.uss


PARTS = {"nodes": nodes, "holder": holder, "reshard": reshard, "rates": rates}


def main() -> int:
    """Writes `<part>.json`; 1 when resharding changed a bit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--model", choices=recovery.SIZES, default="1b" if torch.cuda.is_available() else "toy")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{args.part}-") as root:
        result = PARTS[args.part](args, Path(root))
    (args.out / f"{args.part}.json").write_text(json.dumps(result, indent=1))
    print(args.part, json.dumps(result), flush=True)
    return 0 if result.get("all_equal", True) else 1


if __name__ == "__main__":
    sys.exit(main())
