"""Every way of saving side by side, in one run: what it blocks, slows down, costs in memory, and loads back.

    python tests/gpu/bench_checkpoint.py --out results                1 B parameters on each GPU of --ranks
    python tests/gpu/bench_checkpoint.py --out results --quick        the same in small, on CPU

One process a rank. Every repeat runs every arm for a window: the engine is opened, its memory made ready, a first
save measured apart and drained; then come `--intervals` intervals that begin with a save, and one without before
and after each. What a save costs is the difference to its two neighbours: a GPU at its power limit runs some per
cent faster or slower from one minute to the next. Steps that are not needed are counted, not trained.

The interval is the one at which `sync` reaches `--sync-efficiency`, from one synchronous save measured first. At
the begin of every interval a fingerprint of the state is taken on the device; every generation is loaded and
compared with it. Results are written after each window. Starts no window after `--minutes`.
`--work` is the storage; it has to hold one generation more than there are intervals.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil
import torch
import torch.distributed as dist
from bench_model import Clock, Rank, Training, sum_bits
from bench_options import parse, start
from bench_report import Measured, Steps, in_memory, summary, table, versions
from torch import Tensor

from trainer.checkpoint import CheckpointEngine, PlainControl
from trainer.checkpoint.layout import Layout
from trainer.checkpoint.reading import fill_from_storage
from trainer.config import CheckpointConfig, LoopConfig
from trainer.events import Ledger
from trainer.garbage import Collector
from trainer.paths import GENERATION_NAME, RunPaths

SETTINGS: dict[str, dict[str, Any]] = {
    "sync": {"writer": "sync"},
    "dcp": {"writer": "dcp"},
    "nvrx": {"writer": "nvrx"},
    "steadfast-host": {"writer": "steadfast", "stage": "host"},
    "steadfast-device": {"writer": "steadfast", "stage": "device"},
}
NEVER = 1_000_000_000
LEAD_STEPS, AFTER_STEPS = 5, 3
"""Trained before and after the first save of a window."""
FILL_STEPS = 3
"""Not timed, so that the device has work waiting when the first timed step begins."""
PROBE_BYTES = 2 << 30
WAIT_S = 300.0


class Arm(Measured):
    """A way of saving, while it runs."""

    engine: CheckpointEngine | None = None
    layout: Layout
    fingerprints: dict[int, Tensor]


class Bench:
    """All arms on one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.end_s = options.started_s + options.minutes * 60
        self.rank = Rank(options)
        self.training = Training(options, self.rank)
        self.work, self.shm = Path(options.work), Path(options.shm)
        self.stored_in_memory = in_memory(self.work)
        self.controls = 0
        self.interval = 0
        self.calibrated: dict[str, Any] = {}
        self.arms = {name: Arm(name) for name in options.arms.split(",")}
        self.unverified: tuple[Arm, Path, dict[int, Tensor]] | None = None
        """Generations to compare, with their fingerprints."""
        self.buffer: Tensor | None = None
        self.collector = Collector(LoopConfig().collect_garbage_every)
        self.collector.take_over()

    def say(self, text: str) -> None:
        """For whoever waits."""
        if self.rank.number == 0:
            print(f"{time.time() - self.options.started_s:6.1f} s  {text}", flush=True)

    # one arm

    def open(self, arm: Arm, root: Path) -> None:
        """Start its engine on the state as it is."""
        started, before = time.perf_counter(), self.rank.device_bytes()
        paths = RunPaths(root)
        arm.runs.append(paths)
        paths.make()
        settings = {
            "persist_every": 2 * self.interval,
            "keep": self.options.intervals + 1,
            "overlap": "wait",
            "host_slots": self.options.host_slots,
            "max_host_fraction": 0.9,
            **SETTINGS[arm.name],
        }
        arm.engine = CheckpointEngine(
            config=CheckpointConfig(**settings),
            paths=paths,
            shm=self.shm,
            run="bench",
            pod=f"bench{self.options.seed}",
            ledger=Ledger(paths.events, f"rank-{self.rank.number:05}", pod="bench", rank=self.rank.number),
            device=self.rank.device,
        )
        self.controls += 1
        control = PlainControl.make(self.rank.store, f"control{self.controls}", 120)
        restored = arm.engine.open(control, self.training.state)
        assert restored.step == 0, restored
        self.training.step_number = 0
        arm.layout, arm.fingerprints, arm.first_step = arm.engine._layout, {}, 2 * self.interval
        arm.device_bytes = self.rank.device_bytes() - before
        arm.open_s.append(time.perf_counter() - started)

    def make_ready(self, arm: Arm) -> None:
        """Have the host's memory registered: what a run does in its first seconds."""
        arena = getattr(arm.engine._backend, "_arena", None)  # type: ignore[union-attr]
        if arena is not None and not arena.registered.wait(WAIT_S):
            raise TimeoutError(f"the arena was not registered within {WAIT_S} s")

    def close(self, arm: Arm) -> None:
        """End its engine; the generations stay."""
        if arm.engine is not None:
            arm.engine.close()
            arm.engine = None

    def run(self, arm: Arm, steps: int, watch_memory: bool = False, lead: int = FILL_STEPS) -> Steps:
        """Train `lead` steps, then time `steps` steps; saves come from the engine."""
        training, engine = self.training, arm.engine
        in_flight = []
        idle_bytes = self.used_bytes() if watch_memory else 0
        self.rank.settle()
        clock = Clock(self.rank.device)
        for n in range(-lead, steps):
            if n == 0:
                clock.mark()
            number = training.step_number + 1
            if engine is not None:
                engine.decide(number)
            training.forward_backward()
            if engine is not None:
                engine.before_optimizer_step()
            training.update()
            training.step_number = number
            if number % self.interval == 0:
                arm.fingerprints[number] = training.fingerprint()
            self.collector.after_step(number)
            if engine is not None:
                engine.after_step(number)
            if n < 0:
                continue
            clock.mark()
            in_flight.append(engine is not None and engine.saving)
            if watch_memory:
                arm.host_bytes = max(arm.host_bytes, self.used_bytes() - idle_bytes)
        self.rank.settle()
        return Steps(clock.durations_s(), in_flight)

    def used_bytes(self) -> int:
        """Memory of the machine in use, files on --work left out."""
        memory = psutil.virtual_memory()
        stored = sum(p.stat().st_size for p in self.work.rglob("*.distcp*") if p.is_file())
        return memory.total - memory.available - (stored if self.stored_in_memory else 0)

    def skip(self, arm: Arm, upto: int) -> None:
        """Steps that are decided upon and counted, but not trained."""
        assert arm.engine is not None
        for number in range(self.training.step_number + 1, upto + 1):
            arm.engine.decide(number)
            arm.engine.after_step(number)
        self.training.step_number = max(self.training.step_number, upto)

    def warm(self, arm: Arm) -> None:
        """The first save, from its launch until nothing of it is left to do."""
        self.skip(arm, arm.first_step - LEAD_STEPS - FILL_STEPS - 1)
        self.run(arm, LEAD_STEPS + AFTER_STEPS, watch_memory=True)
        started = time.perf_counter()
        arm.engine._backend.drain(WAIT_S)  # type: ignore[union-attr]
        arm.drain_s.append(time.perf_counter() - started)

    def heating_steps(self) -> int:
        """Trained before a window: a device that has waited for a drain is cool, and fast until it is not."""
        wanted = int(self.options.heat_s / self.calibrated["t_ref_s"])
        return min(max(wanted, FILL_STEPS), self.interval - AFTER_STEPS - 1)

    def window(self, arm: Arm) -> None:
        """Intervals with and without a save in turn. What the arm before left is compared meanwhile."""
        intervals = self.options.intervals if arm.name in self.options.often else self.options.few_intervals
        self.open(arm, self.work / arm.name / str(len(arm.runs)))
        self.verify()
        self.make_ready(arm)
        self.warm(arm)
        lead = self.heating_steps()
        self.skip(arm, 2 * arm.first_step - self.interval - lead - 1)
        arm.windows.append(self.run(arm, self.interval * (2 * intervals + 1), lead=lead))
        arm.engine._backend.drain(WAIT_S)  # type: ignore[union-attr]
        self.rank.settle()
        self.close(arm)
        self.unverified = (arm, arm.runs[-1].checkpoints, arm.fingerprints)

    def verify(self) -> None:
        """Load every generation of the last window, compare it with its fingerprint, and remove it."""
        if self.unverified is None:
            return
        (arm, generations, fingerprints), self.unverified = self.unverified, None
        if self.buffer is None or self.buffer.numel() < arm.layout.slot_bytes:
            self.buffer = torch.empty(arm.layout.slot_bytes, dtype=torch.uint8)
        with ThreadPoolExecutor() as pool:
            for directory in sorted(generations.glob("step-*")):
                match = GENERATION_NAME.match(directory.name)
                if match and (directory / "commit.json").exists():
                    self.compare(arm, directory, fingerprints[int(match[1])])
                self.rank.settle()
                if self.rank.number == 0:
                    pool.submit(shutil.rmtree, directory)
        dist.barrier()

    def compare(self, arm: Arm, directory: Path, fingerprint: Tensor) -> None:
        """One generation, read as a restore reads it."""
        assert self.buffer is not None
        buffer = self.buffer[: arm.layout.slot_bytes]
        fill_from_storage(directory, arm.layout, buffer)
        expected = dict(zip(self.training.state.device_tensors(), fingerprint.tolist(), strict=True))
        items = [item for item in arm.layout.items if item.on_device]
        wrong = [i.fqn for i in items if int(sum_bits(arm.layout.view(i, buffer))) != expected[i.fqn]]
        arm.compared += 1
        arm.different += [f"{directory.name}: {fqn}" for fqn in wrong[:3]]

    # the whole

    def calibrate(self) -> None:
        """Step time, the part of a step that a copy may overlap with, and the interval."""
        nothing, self.interval = Arm("nothing"), NEVER
        self.run(nothing, 5)
        self.training.fingerprint()
        t_ref = self.rank.agree(statistics.median(self.run(nothing, self.options.reference_steps).steps_s))
        self.calibrated = {"t_ref_s": t_ref, "overlap_s": self.overlap_s(), "copy_s": self.copy_s()}
        measured = self.sync_interval(t_ref)
        self.interval = self.options.interval_steps or measured
        interval_s = self.interval * t_ref
        self.calibrated["sync_efficiency"] = interval_s / (interval_s + self.calibrated["sync_save_s"])
        self.say(f"{self.calibrated}, interval {self.interval} steps = {interval_s:.1f} s")

    def sync_interval(self, t_ref: float) -> int:
        """From the second synchronous save: the first costs more, and a shorter interval is the harder case."""
        sync = Arm("sync")
        self.interval = 2
        self.open(sync, self.work / "calibrate")
        self.run(sync, 4 * self.interval)
        self.calibrated["sync_save_s"] = self.rank.agree(sync.events("snapshot")[-1]["blocked_s"])
        self.close(sync)
        if self.rank.number == 0:
            shutil.rmtree(self.work / "calibrate")
        dist.barrier()
        target = self.options.sync_efficiency
        shortest = LEAD_STEPS + AFTER_STEPS + FILL_STEPS + 2
        return max(int(target / (1 - target) * self.calibrated["sync_save_s"] / t_ref), shortest)

    def overlap_s(self) -> float:
        """Forward and backward: a host-side snapshot is copied beside them for nothing."""
        clocks = []
        for _ in range(5):
            clock = Clock(self.rank.device)
            clock.mark()
            self.training.forward_backward()
            clock.mark()
            self.training.update()
            clocks.append(clock)
        return statistics.median(clock.durations_s()[0] for clock in clocks)

    def copy_s(self) -> float | None:
        """A snapshot's way into registered memory, if nothing else happens."""
        if self.rank.device.type != "cuda":
            return None
        source = torch.empty(PROBE_BYTES, dtype=torch.uint8, device=self.rank.device)
        target = torch.empty(PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
        clock = Clock(self.rank.device)
        for _ in range(4):
            clock.mark()
            target.copy_(source, non_blocking=True)
        clock.mark()
        return statistics.median(clock.durations_s()) * self.training.nbytes() / PROBE_BYTES

    def measure(self) -> None:
        """Every arm in every repeat, as long as there is time."""
        self.calibrate()
        often = [name for name in self.arms if name in self.options.often]
        for repeat in range(self.options.repeats):
            turn = repeat % max(len(often), 1)
            few = [] if repeat < self.options.repeats - 1 else [name for name in self.arms if name not in often]
            for name in often[turn:] + often[:turn] + few:
                if self.rank.agree(float(time.time() > self.end_s)):
                    self.say(f"out of time before {name}, repeat {repeat + 1}")
                    return
                arm = self.arms[name]
                self.window(arm)
                self.say(f"{name}, repeat {repeat + 1}: {sum(arm.windows[-1].steps_s):.2f} s")
                self.write()

    def write(self) -> None:
        """All that is known so far."""
        t_ref, measured = self.calibrated["t_ref_s"], [arm for arm in self.arms.values() if arm.windows]
        rows = [summary(arm, self.interval, t_ref) for arm in measured]
        tensors = self.training.state.device_tensors()
        result = {
            "versions": versions(self.rank.device, self.work),
            "bytes_per_rank": self.training.nbytes(),
            "tensors": len(tensors),
            "world_size": self.rank.world_size,
            **self.calibrated,
            "interval_steps": self.interval,
            "interval_s": self.interval * t_ref,
            "intervals": self.options.intervals,
            "few_intervals": self.options.few_intervals,
            "rows": rows,
        }
        if self.rank.number == 0:
            out = Path(self.options.out)
            out.mkdir(parents=True, exist_ok=True)
            (out / "bench_checkpoint.json").write_text(json.dumps(result, indent=1) + "\n")
            (out / "bench_checkpoint.md").write_text(table(rows) + "\n")


def rank_main(options: argparse.Namespace) -> None:
    """One rank's life."""
    bench = Bench(options)
    ranks, device = bench.rank.world_size, bench.rank.device
    bench.say(f"{bench.training.nbytes() / 1e9:.2f} GB a rank, {ranks} ranks, {device}")
    bench.measure()
    bench.verify()
    bench.write()
    bench.say("\n" + (Path(options.out) / "bench_checkpoint.md").read_text())
    dist.barrier()
    for child in psutil.Process().children(recursive=True):  # NVRx leaves the manager of its results behind
        child.kill()
    os._exit(0)


def main() -> None:
    """Start the ranks and clean up after them."""
    options = parse(__doc__)
    if "RANK" in os.environ:
        rank_main(options)
    sys.exit(start(options, __file__))


if __name__ == "__main__":
    main()
