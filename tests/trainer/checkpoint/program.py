"""A rank of a small FSDP2 training, driven by tests through a list of orders (JSON in argv)."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import plain_dcp
import torch
import torch.distributed as dist
from nvidia_resiliency_ext.checkpointing.async_ckpt import core as nvrx
from torch import multiprocessing
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from trainer import data
from trainer.checkpoint import CheckpointEngine, ModuleState, PlainControl
from trainer.checkpoint.chain import candidates
from trainer.checkpoint.faults import StorageFault, arm, damage, disarm
from trainer.checkpoint.layout import local
from trainer.config import CheckpointConfig, DataConfig
from trainer.events import Ledger
from trainer.paths import RunPaths

GLOBAL_BATCH = 24
"""Divided by every world size that is tested."""


class Telling(logging.Handler):
    """Warnings of the product become something said."""

    def __init__(self, say: Callable[..., None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say("log", text=record.getMessage())


class Rank:
    """Model, optimizer, engine and the orders that tests give."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.paths = RunPaths(Path(options["run_dir"]))
        self.paths.make()
        self.done = 0
        self.starts = 0
        self.plans = 0
        logging.getLogger("trainer").addHandler(Telling(self.say))
        self._count_plans()
        self.ledger = Ledger(
            self.paths.events, f"rank-{self.rank:05}", pod=options.get("pod", "pod"), rank=self.rank
        )
        self.engine = CheckpointEngine(
            config=CheckpointConfig(**options.get("config", {})),
            paths=self.paths,
            shm=Path(options["shm"]),
            run=options.get("run", "r"),
            pod=options.get("pod", "pod") + (str(self.rank) if options.get("own_pods") else ""),
            ledger=self.ledger,
            device=torch.device("cpu"),
        )
        signal.signal(signal.SIGTERM, lambda *_: self.engine.request_stop("SIGTERM"))
        self.say("engine")

    def _count_plans(self) -> None:
        real = DefaultSavePlanner.create_local_plan

        def counted(planner: DefaultSavePlanner) -> Any:
            self.plans += 1
            return real(planner)

        DefaultSavePlanner.create_local_plan = counted  # type: ignore[method-assign]

    def say(self, what: str, **fields: Any) -> None:
        print(json.dumps({"rank": self.rank, "what": what, **fields}), flush=True)

    def start(self) -> None:
        """(Re)start: groups, model, restore."""
        self.starts += 1
        prefix = f"{self.options['prefix']}.{self.starts}"
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(prefix, self._store()),
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=self.options.get("timeout_s", 120)),
        )
        torch.manual_seed(self.rank)
        width = self.options.get("width", 24)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(3)))
        with torch.no_grad():
            for n, parameter in enumerate(self.model.parameters()):
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(n)))
        if self.options.get("frozen"):
            self.model[0].bias.requires_grad_(False)
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=1e-2)
        for parameter in self.optimizer.param_groups[0]["params"]:
            self.optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self._open(prefix)

    def _open(self, prefix: str) -> None:
        self.done = 0
        state = ModuleState(self.model, self.optimizer, self.rank, lambda: self.done, self._set_done)
        timeout_s = self.options.get("control_timeout_s", self.options.get("timeout_s", 120))
        self.control = PlainControl.make(self._store(), f"control.{prefix}", timeout_s)
        if "lost_in_open" in self.options:
            dist.barrier()  # the group itself is whole
        if self.options.get("lost_in_open") == self.rank:
            os.kill(os.getpid(), signal.Signals[self.options["signal"]])
        started = time.monotonic()
        try:
            restored = self.engine.open(self.control, state)
        finally:
            self.say("opened", took_s=time.monotonic() - started)
        self.say("open", **vars(restored), state=self.digest())
        if "data" in self.options:
            self.batches = self._read_from(restored.step + 1)

    def _read_from(self, step: int) -> Any:
        width = self.options["width"]
        config = DataConfig(
            sequence_length=width, global_batch_size=GLOBAL_BATCH, num_workers=self.options.get("workers", 0)
        )
        directory = Path(self.options["data"])
        return data.batches(
            directory, config, rank=self.rank, world_size=self.world_size, first_step=step, last_step=10_000
        )

    def _store(self) -> Any:
        return dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=30))

    def _set_done(self, step: int) -> None:
        self.done = step

    def digest(self) -> str:
        """Of the whole training state, the same on all ranks and at any world size."""
        total = hashlib.sha256()
        for parameter in self.model.parameters():
            state = self.optimizer.state.get(parameter, {})
            for tensor in (parameter, *state.values()):
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                total.update(whole.detach().numpy().tobytes())
        total.update(str(self.done).encode())
        return total.hexdigest()[:16]

    def step(self) -> int | None:
        """One training step; returns the stop step if it is known."""
        step = self.done + 1
        self.engine.decide(step)
        loss = self.model(self._inputs(step)).square().mean()
        loss.backward()
        if "data" in self.options:
            self._tell_loss(step, loss.detach())
        torch.rand(3)  # moves this rank's RNG
        self.engine.before_optimizer_step()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done = step
        self.engine.after_step(step)
        time.sleep(self.options.get("step_s", 0.0))
        return self.engine.stop_step()

    def _inputs(self, step: int) -> torch.Tensor:
        """This rank's part of the step's global batch."""
        width = self.model[0].in_features
        if "data" in self.options:
            tokens = next(self.batches)
            self.samples = tokens[:, 0].tolist()
            return tokens[:, :width].float() / 65536
        whole = torch.randn(GLOBAL_BATCH, width, generator=torch.Generator().manual_seed(step))
        share = GLOBAL_BATCH // self.world_size
        return whole[self.rank * share : (self.rank + 1) * share]

    def _tell_loss(self, step: int, loss: torch.Tensor) -> None:
        samples: list[list[int]] = [[]] * self.world_size
        dist.all_gather_object(samples, self.samples)
        dist.all_reduce(loss)
        self.say("step", step=step, loss=float(loss) / self.world_size, samples=list(chain(*samples)))

    # orders

    def do_start(self) -> None:
        self.start()

    def do_train(self, upto: int) -> None:
        while self.done < upto:
            if self.step() == self.done:
                self.say("stopping", step=self.done)
                break
        self.say("trained", step=self.done, state=self.digest())

    def do_advance(self, steps: int) -> None:
        self.do_train(self.done + steps)

    def do_finish(self, timeout_s: float | None = None) -> None:
        committed = self.engine.finish(self.done, timeout_s=timeout_s)
        self.say("finished", committed=committed, state=self.digest())

    def do_drain(self) -> None:
        assert self.engine._backend.drain(200), "saves hang"
        dist.barrier()
        self.say("drained")

    def do_abort(self) -> None:
        started = time.monotonic()
        self.engine.abort()
        dist.destroy_process_group()
        self.say("aborted", took_s=time.monotonic() - started)

    def do_damage(self, kind: str, rank: int) -> None:
        """Harm the newest generation, and forget what is in memory."""
        dist.barrier()
        if self.rank == 0:
            path = damage(self.paths, candidates(self.paths)[0], kind, rank=rank)  # type: ignore[arg-type]
            self.say("damaged", path=str(path), kind=kind)
        self.do_forget()

    def do_arm(self, **fault: Any) -> None:
        """From here on that storage fault acts; none without arguments."""
        dist.barrier()
        if self.rank == 0:
            disarm(self.paths)
            if fault:
                arm(self.paths, StorageFault(**fault))
        dist.barrier()

    def do_evaluate(self, batches: int) -> None:
        """Forward passes alone, as an evaluation between two steps."""
        self.say("evaluating")
        with torch.no_grad():
            for number in range(batches):
                torch.manual_seed(number)
                self.model(torch.randn(2, self.model[0].in_features))
                time.sleep(0.05)
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def do_sequence(self) -> None:
        """How many collectives each group has seen."""
        groups = {"default": dist.group.WORLD, "control": self.control.group}
        self.say(
            "sequence", **{k: g._get_sequence_number_for_group() for k, g in groups.items()}, plans=self.plans
        )  # type: ignore[union-attr]

    def do_forget(self) -> None:
        """As if the pod were new."""
        self.do_forget_here()
        dist.barrier()

    def do_forget_here(self) -> None:
        """The same between two attempts, when there is no group."""
        for record in Path(self.options["shm"]).rglob(f"rank-{self.rank:05}.slot*.json"):
            record.unlink()

    def do_say(self, what: str) -> None:
        self.say(what)

    def do_wait(self, path: str) -> None:
        """Until a test makes a file."""
        while not Path(path).exists():
            time.sleep(0.01)

    def do_sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def do_kill(self, rank: int) -> None:
        if rank in (self.rank, -1):
            os.kill(os.getpid(), signal.SIGKILL)

    def do_signal_writer(self, number: int, rank: int = -1) -> None:
        if rank in (self.rank, -1):
            os.kill(self.engine.overheads["writer_pid"], number)

    def do_request_stop(self, rank: int) -> None:
        if rank == self.rank:
            self.engine.request_stop("test")

    def do_rng(self) -> None:
        self.say("rng", value=torch.rand(4).tolist())

    def do_counts(self) -> None:
        """What must not grow."""
        import threading

        gc.collect()
        status, maps = (Path(f"/proc/self/{name}").read_text().splitlines() for name in ("status", "maps"))
        self.say(
            "counts",
            rss_kib=int(next(line for line in status if line.startswith("VmRSS")).split()[1]),
            threads=threading.active_count(),
            files=len(os.listdir("/proc/self/fd")),
            semaphores=sum("/dev/shm/sem.mp-" in line for line in maps),
            shm=sorted(p.name for p in Path(self.options["shm"]).rglob("*") if p.is_file()),
            writer=self.engine.overheads.get("writer_pid"),
        )

    def do_replace_tensors(self) -> None:
        """As `set_state_dict` does: moments get new storage."""
        for state in self.optimizer.state.values():
            state["exp_avg"] = state["exp_avg"].clone()

    def do_local_sum(self) -> None:
        self.say("sum", value=float(sum(local(p).double().sum() for p in self.model.parameters())))

    def do_close(self) -> None:
        self.engine.close()
        self.say("closed")


def fork_writers() -> None:
    """NVRx spawns its worker, which imports torch for seconds; what it does then is the same after a fork."""
    nvrx.mp = SimpleNamespace(get_context=lambda _: multiprocessing.get_context("fork"))


def live(options: dict[str, Any]) -> None:
    """A rank's life: the orders, one after another."""
    torch.set_num_threads(1)
    if not options.get("spawn_writer"):
        fork_writers()
    rank = Rank(options)
    for name, *arguments in options["orders"]:
        named = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        try:
            getattr(rank, f"do_{name}")(*arguments, **named)
        except Exception as error:
            rank.say("error", order=name, kind=type(error).__name__, text=str(error))
            if not options.get("go_on"):
                os._exit(3)


def fork(call: Callable[[], None]) -> int:
    """A child that does that and ends."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        call()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def launch(request: dict[str, Any]) -> None:
    """Fork the ranks, and write down how each ends."""
    directory = Path(request["directory"])

    def rank(number: int) -> None:
        out = os.open(directory / f"{number}.out", os.O_CREAT | os.O_WRONLY)
        os.dup2(out, 1)
        os.environ.update({**request["env"], "RANK": str(number)})
        os.setsid()  # a group of its own, as a rank of ft_launcher has
        (plain_dcp.live if "plain" in request["options"] else live)(request["options"])

    pids = [fork(partial(rank, number)) for number in range(request["ranks"])]
    (directory / "pids.json").write_text(json.dumps(pids))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    (directory / "codes.tmp").write_text(json.dumps(codes))
    (directory / "codes.tmp").rename(directory / "codes.json")


def main() -> None:
    """Fork a launcher for every request on stdin."""
    for line in sys.stdin:
        fork(partial(launch, json.loads(line)))
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
