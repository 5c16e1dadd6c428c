"""Every way of saving side by side, in one run: what it blocks, slows down, costs in memory, and loads back.

    python tests/gpu/bench_checkpoint.py --out results                1 B parameters on each GPU of --ranks
    python tests/gpu/bench_checkpoint.py --out results --quick        the same in small, on CPU

One process a rank. Arms are interleaved: every repeat runs every arm for a window of `--intervals` whole
intervals, each with its save and everything that the save does in the background; the control arm trains without
saving. The interval is the one at which `sync` reaches `--sync-efficiency`, from one synchronous save measured
first. At each save all arms, control too, take a fingerprint of the state on the device; after a window every
generation that retention left is loaded and compared with it. Ends by itself after `--minutes`, with what it has.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from trainer.checkpoint import CheckpointEngine, ModuleState, PlainControl
from trainer.checkpoint.layout import Layout, local
from trainer.checkpoint.reading import fill_from_storage
from trainer.config import CheckpointConfig
from trainer.events import Ledger, read_ledger
from trainer.paths import GENERATION_NAME, RunPaths

ARMS: dict[str, dict[str, Any]] = {
    "control": {},
    "sync": {"writer": "sync"},
    "dcp": {"writer": "dcp"},
    "nvrx": {"writer": "nvrx"},
    "steadfast-host": {"writer": "steadfast", "stage": "host"},
    "steadfast-device": {"writer": "steadfast", "stage": "device"},
}
NEVER = 1_000_000_000


class Block(nn.Module):
    """Attention and SwiGLU."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.gate = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, dim))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Embedding, blocks, output."""

    def __init__(self, vocab: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Training:
    """A model that trains on random tokens; arms share it."""

    def __init__(self, options: argparse.Namespace, device: torch.device, rank: int, world_size: int) -> None:
        self.options, self.device = options, device
        torch.manual_seed(0)
        with torch.device(device):
            self.model = Decoder(options.vocab, options.dim, options.layers, options.heads)
        mesh = init_device_mesh(device.type, (world_size,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        extra = {"mp_policy": policy} if device.type == "cuda" else {}
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh, **extra)
        fully_shard(self.model, mesh=mesh, **extra)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=device.type == "cuda")
        for parameter in self.model.parameters():
            self.optimizer.state[parameter] = {
                "step": torch.zeros((), device=device if device.type == "cuda" else "cpu"),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self.step_number = 0
        self.state = ModuleState(self.model, self.optimizer, rank, lambda: self.step_number, self._set_step)
        shape = (options.batch, options.length + 1)
        self.tokens = torch.randint(options.vocab, shape, device=device)

    def _set_step(self, step: int) -> None:
        self.step_number = step

    def forward_backward(self) -> None:
        logits = self.model(self.tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1).float(), self.tokens[:, 1:].flatten()).backward()

    def fingerprint(self) -> Tensor:
        """One integer for each device tensor, computed where it lives."""
        return torch.stack([_sum_bits(local(t)) for t in self.state.device_tensors().values()])


def _sum_bits(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.int32).sum(dtype=torch.int64) if flat.numel() else flat.new_zeros((), dtype=torch.int64)


class Clock:
    """Times of steps: events on the GPU, perf_counter on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def durations_s(self) -> list[float]:
        if not self._cuda:
            return [b - a for a, b in zip(self._marks, self._marks[1:], strict=False)]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in zip(self._marks, self._marks[1:], strict=False)]


@dataclass
class Window:
    """One arm in one repeat."""

    wall_s: float
    steps_s: list[float]
    saves_at: list[int]
    in_flight: list[bool]
    launches_s: list[float]


@dataclass
class Arm:
    """A way of saving and what was measured of it. Each window is a run of its own."""

    name: str
    root: Path
    runs: list[RunPaths] = field(default_factory=list)
    engine: CheckpointEngine | None = None
    windows: list[Window] = field(default_factory=list)
    fingerprints: dict[int, Tensor] = field(default_factory=dict)
    compared: int = 0
    different: list[str] = field(default_factory=list)
    first_s: float | None = None
    open_s: float = 0.0
    drain_s: float = 0.0
    device_bytes: int = 0
    host_bytes: int = 0


class Bench:
    """All arms on one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.end_s = options.started_s + options.minutes * 60
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        cuda = torch.cuda.is_available() and not options.cpu
        self.device = torch.device("cuda", self.rank) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(1)
        self.store = dist.TCPStore(
            "127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=120)
        )
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=dist.PrefixStore("default", self.store),
            rank=self.rank,
            world_size=self.world_size,
        )
        self.training = Training(options, self.device, self.rank, self.world_size)
        self.work = Path(options.work)
        self.controls = 0
        self.interval = 0
        names = options.arms.split(",")
        self.arms = [Arm(name, self.work / name) for name in names]

    def say(self, text: str) -> None:
        if self.rank == 0:
            print(f"{time.time() - self.options.started_s:6.1f} s  {text}", flush=True)

    def agree(self, value: float) -> float:
        """Rank 0's value."""
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    # one arm

    def open(self, arm: Arm, **config: Any) -> None:
        """Start its engine on the state as it is."""
        started = time.perf_counter()
        paths = RunPaths(arm.root / str(len(arm.runs)))
        arm.runs.append(paths)
        paths.make()
        ledger = Ledger(paths.events, f"rank-{self.rank:05}", pod="bench", rank=self.rank)
        settings = {
            "persist_every": self.interval or NEVER,
            "keep": self.options.keep,
            "overlap": "wait",
            "host_slots": self.options.host_slots,
            "max_host_fraction": 0.9,
            **ARMS[arm.name],
            **config,
        }
        arm.engine = CheckpointEngine(
            config=CheckpointConfig(**settings),
            paths=paths,
            shm=Path(self.options.shm),
            run="bench",
            pod=f"bench{self.options.seed}",
            ledger=ledger,
            device=self.device,
        )
        before = self.memory()
        self.controls += 1
        control = PlainControl.make(self.store, f"control{self.controls}", 120)
        restored = arm.engine.open(control, self.training.state)
        assert restored.step == 0, restored
        self.training.step_number = 0
        arm.device_bytes = self.memory() - before
        arm.open_s = time.perf_counter() - started

    def memory(self) -> int:
        return torch.cuda.memory_allocated() if self.device.type == "cuda" else 0

    def close(self, arm: Arm) -> None:
        if arm.engine is not None:
            arm.engine.close()
            arm.engine = None

    def run(self, arm: Arm, steps: int) -> Window:
        """Train `steps` steps; saves come from the engine."""
        training, engine = self.training, arm.engine
        launches, saves_at, in_flight = [], [], []
        self.settle()
        clock, started = Clock(self.device), time.perf_counter()
        clock.mark()
        for n in range(steps):
            number = training.step_number + 1
            saves = self.interval and number % self.interval == 0
            if engine is not None:
                engine.decide(number)
            training.forward_backward()
            if engine is not None:
                engine.before_optimizer_step()
            training.optimizer.step()
            training.optimizer.zero_grad(set_to_none=True)
            training.step_number = number
            if saves:
                arm.fingerprints[number] = training.fingerprint()
                saves_at.append(n)
            if engine is not None:
                before = time.perf_counter()
                engine.after_step(number)
                if saves:
                    launches.append(time.perf_counter() - before)
                in_flight.append(engine.saving)
            clock.mark()
        self.settle()
        return Window(time.perf_counter() - started, clock.durations_s(), saves_at, in_flight, launches)

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()

    def window(self, arm: Arm) -> None:
        """A window of whole intervals, each beginning with a save; the very first save is measured apart."""
        arm.fingerprints = {}
        if arm.name == "control":
            self.training.step_number = self.interval - 1
        else:
            self.open(arm)
            first = self.run(arm, 2 * self.interval - 1)
            if arm.first_s is None:
                arm.first_s = next(_costs(first, self.t_ref))
        arm.windows.append(self.run(arm, self.interval * self.options.intervals))
        if arm.engine is not None:
            started = time.perf_counter()
            arm.engine._backend.drain(300)
            arm.drain_s = time.perf_counter() - started
            arm.host_bytes = max(arm.host_bytes, shm_bytes(Path(self.options.shm)))
            self.settle()
            self.compare(arm)
            self.close(arm)
            self.settle()
            if self.rank == 0:
                keep_events(arm.runs[-1])
            dist.barrier()

    def compare(self, arm: Arm) -> None:
        """Load what retention left, outside the arm's time, and compare it with the fingerprints."""
        layout: Layout = arm.engine._layout  # type: ignore[union-attr]
        buffer = torch.zeros(layout.slot_bytes, dtype=torch.uint8)
        order = list(self.training.state.device_tensors())
        for directory in sorted(arm.runs[-1].checkpoints.glob("step-*")):
            match = GENERATION_NAME.match(directory.name)
            if not match or not (directory / "commit.json").exists():
                continue
            fill_from_storage(directory, layout, buffer)
            loaded = {i.fqn: int(_sum_bits(layout.view(i, buffer))) for i in layout.items if i.on_device}
            expected = dict(zip(order, arm.fingerprints[int(match[1])].tolist(), strict=True))
            wrong = sorted(fqn for fqn in expected if expected[fqn] != loaded[fqn])
            arm.compared += 1
            arm.different += [f"{directory.name}: {fqn}" for fqn in wrong[:3]]
        dist.barrier()

    # the whole

    def calibrate(self) -> None:
        """Step time, one synchronous save, and from both the interval."""
        control = Arm("control", self.work / "warm")
        self.run(control, 5)
        self.t_ref = self.agree(statistics.median(self.run(control, self.options.reference_steps).steps_s))
        sync = Arm("sync", self.work / "calibrate")
        self.interval = 2
        self.open(sync)
        blocked_s = self.agree(next(_costs(self.run(sync, 3), self.t_ref)))
        self.close(sync)
        if self.rank == 0:
            shutil.rmtree(sync.root)
        dist.barrier()
        self.sync_s = blocked_s
        target = self.options.sync_efficiency
        wanted = self.options.interval_steps or math.ceil(target / (1 - target) * blocked_s / self.t_ref)
        self.interval = max(int(self.agree(wanted)), 4)
        self.say(
            f"step {self.t_ref * 1e3:.1f} ms, a synchronous save {blocked_s:.2f} s, "
            f"interval {self.interval} steps = {self.interval * self.t_ref:.1f} s"
        )

    def measure(self) -> None:
        self.calibrate()
        longest = 0.0
        for repeat in range(self.options.repeats):
            turn = repeat % len(self.arms)
            for arm in self.arms[turn:] + self.arms[:turn]:
                slow = arm.name in ("sync", "dcp", "nvrx")
                if slow and repeat >= self.options.slow_repeats:
                    continue
                if self.agree(float(time.time() + longest > self.end_s)):
                    self.say(f"out of time before {arm.name}, repeat {repeat + 1}")
                    return
                started = time.time()
                self.window(arm)
                longest = max(longest, time.time() - started)
                self.say(f"{arm.name}, repeat {repeat + 1}: {arm.windows[-1].wall_s:.2f} s")


def keep_events(paths: RunPaths) -> None:
    """The generations would fill the disk."""
    for directory in paths.checkpoints.iterdir():
        shutil.rmtree(directory)


def shm_bytes(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def summary(arm: Arm, control: list[Window]) -> dict[str, Any]:
    """One row of the table."""
    t_ref = statistics.median([s for w in control for s in w.steps_s])
    events = [record for paths in arm.runs for record in read_ledger(paths.events)]
    blocked = [s["blocked_s"] for s in events if s["event"] == "snapshot"]
    # the control arm takes the same fingerprints at the same steps
    usual_s = statistics.median([cost for w in control for cost in _costs(w, t_ref)])
    steps_blocked = [cost - usual_s for w in arm.windows for cost in _costs(w, t_ref)]
    quiet = [s for w in arm.windows for s in _beside(w)]
    efficiencies = [c.wall_s / w.wall_s for c, w in zip(control, arm.windows, strict=False)]
    commits = [e["commit_s"] for e in events if e["event"] == "committed"]
    prepared = [e["duration_s"] for e in events if e["event"] == "prepared"]
    return {
        "arm": arm.name,
        "windows": len(arm.windows),
        "saves": sum(len(w.saves_at) for w in arm.windows),
        "efficiency": statistics.mean(efficiencies),
        "efficiency_low": _lower(efficiencies),
        "efficiency_each": efficiencies,
        "blocked_s": _quantiles(blocked or [0.0]),
        "blocked_first_s": arm.first_s,
        "step_excess_s": _quantiles(steps_blocked),
        "fingerprint_s": usual_s,
        "slowdown_while_writing": statistics.mean(quiet) / t_ref - 1 if quiet else None,
        "commit_s": _quantiles(commits) if commits else None,
        "drain_s": arm.drain_s,
        "prepare_s": max(prepared, default=arm.open_s),
        "host_bytes": arm.host_bytes,
        "device_bytes": arm.device_bytes,
        "loaded_and_equal": f"{arm.compared - len({d.split(':')[0] for d in arm.different})}/{arm.compared}",
        "different": arm.different,
        "failed": [e["error"] for e in events if e["event"] == "save_failed"],
    }


def _costs(window: Window, t_ref: float) -> Iterator[float]:
    """What a save took from its own step and the next."""
    for at in window.saves_at:
        yield sum(step - t_ref for step in window.steps_s[at : at + 2])


def _beside(window: Window) -> list[float]:
    """Steps during which a save was under way, but for the one that launched it and the next."""
    near = {at + d for at in window.saves_at for d in (0, 1)}
    return [
        s
        for n, s in enumerate(window.steps_s)
        if n < len(window.in_flight) and window.in_flight[n] and n not in near
    ]


def _quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "p50": statistics.median(ordered),
        "p99": ordered[min(len(ordered) - 1, math.ceil(0.99 * len(ordered)) - 1)],
        "max": ordered[-1],
        "n": len(ordered),
    }


T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}


def _lower(values: list[float]) -> float | None:
    """Lower end of the 95 % interval of the mean (Student)."""
    if len(values) < 2:
        return None
    half = T_95.get(len(values), 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values) - half


def table(rows: list[dict[str, Any]]) -> str:
    columns = (
        "arm, E, 95 % low, blocked p50/p99/max ms, first ms, slower, commit s, drain s, host GB, GPU GB, equal"
    )
    lines = ["| " + " | ".join(columns.split(", ")) + " |", "|" + "---|" * 11]
    for row in rows:
        blocked = "/".join(f"{row['step_excess_s'][q] * 1e3:.0f}" for q in ("p50", "p99", "max"))
        low = f"{row['efficiency_low']:.2%}" if row["efficiency_low"] else "–"
        first = f"{row['blocked_first_s'] * 1e3:.0f}" if row["blocked_first_s"] is not None else "–"
        slower = f"{row['slowdown_while_writing']:+.2%}" if row["slowdown_while_writing"] is not None else "–"
        commit = f"{row['commit_s']['p50']:.2f}" if row["commit_s"] else "–"
        lines.append(
            f"| {row['arm']} | {row['efficiency']:.2%} | {low} | {blocked} | {first} | {slower} | {commit} | "
            f"{row['drain_s']:.2f} | {row['host_bytes'] / 1e9:.2f} | {row['device_bytes'] / 1e9:.2f} | "
            f"{row['loaded_and_equal']} |"
        )
    return "\n".join(lines)


def versions(bench: Bench) -> dict[str, Any]:
    cuda = bench.device.type == "cuda"
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "cpus": os.cpu_count(),
        "work": str(bench.work),
        "storage": subprocess.run(
            ["df", "-T", str(bench.work)], capture_output=True, text=True
        ).stdout.splitlines()[-1],
    }


def rank_main(options: argparse.Namespace) -> None:
    bench = Bench(options)
    tensors = bench.training.state.device_tensors()
    nbytes = sum(local(t).nbytes for t in tensors.values())
    bench.say(f"{nbytes / 1e9:.2f} GB in {len(tensors)} tensors a rank, {bench.world_size} ranks, {bench.device}")
    bench.measure()
    if bench.rank == 0:
        control = next((a.windows for a in bench.arms if a.name == "control"), [])
        rows = [summary(arm, control) for arm in bench.arms if arm.windows and control and arm.name != "control"]
        result = {
            "versions": versions(bench),
            "bytes_per_rank": nbytes,
            "tensors": len(tensors),
            "world_size": bench.world_size,
            "t_ref_s": bench.t_ref,
            "sync_save_s": bench.sync_s,
            "interval_steps": bench.interval,
            "interval_s": bench.interval * bench.t_ref,
            "intervals": options.intervals,
            "control_wall_s": [w.wall_s for w in control],
            "rows": rows,
        }
        out = Path(options.out)
        out.mkdir(parents=True, exist_ok=True)
        (out / "bench_checkpoint.json").write_text(json.dumps(result, indent=1))
        print(table(rows), flush=True)
    dist.barrier()
    os._exit(0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", default="results")
    add("--quick", action="store_true", help="small, on CPU")
    add("--cpu", action="store_true")
    add("--ranks", type=int, default=0, help="default: every GPU; 1 on CPU")
    add("--arms", default=",".join(ARMS))
    add("--repeats", type=int, default=3)
    add("--slow-repeats", type=int, default=1, help="repeats of sync, dcp and nvrx")
    add("--intervals", type=int, default=5)
    add("--interval-steps", type=int, default=0, help="0: from a measured synchronous save")
    add("--sync-efficiency", type=float, default=0.60)
    add("--reference-steps", type=int, default=30)
    add("--minutes", type=float, default=8.5)
    add("--keep", type=int, default=2, help="generations on disk at the end of a window, all compared")
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
    if options.quick:
        small = {"cpu": True, "vocab": 256, "dim": 128, "layers": 2, "heads": 4, "batch": 2, "length": 64}
        few = {"intervals": 2, "repeats": 2, "reference_steps": 10, "interval_steps": 12, "minutes": 4.0}
        vars(options).update({**small, **few})
    return options


def main() -> None:
    options = parse()
    if "RANK" in os.environ:
        rank_main(options)
    cuda = torch.cuda.is_available() and not options.cpu
    ranks = options.ranks or (torch.cuda.device_count() if cuda else 1)
    work = Path(options.work or Path.cwd() / f"bench-{options.seed}")
    shm = Path(options.shm or f"/dev/shm/bench-{options.seed}")
    work.mkdir(parents=True)
    shm.mkdir(parents=True)
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    fixed = [
        "--work",
        str(work),
        "--shm",
        str(shm),
        "--started-s",
        str(options.started_s),
        "--seed",
        str(options.seed),
    ]
    children = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], *fixed],
            env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks), "MASTER_PORT": str(store.port)},
        )
        for r in range(ranks)
    ]
    try:
        codes = [child.wait() for child in children]
    finally:
        for child in children:
            child.kill()
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(shm, ignore_errors=True)
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
