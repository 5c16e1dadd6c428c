"""A rank of a small FSDP2 training, driven by tests through a list of orders (JSON in argv)."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import plain_dcp
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from trainer.checkpoint import CheckpointEngine, ModuleState, PlainControl
from trainer.checkpoint.chain import candidates
from trainer.checkpoint.faults import damage
from trainer.checkpoint.layout import local
from trainer.config import CheckpointConfig
from trainer.events import Ledger
from trainer.paths import RunPaths


class Rank:
    """Model, optimizer, engine and the orders that tests give."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.paths = RunPaths(Path(options["run_dir"]))
        self.paths.make()
        self.done = 0
        self.starts = 0
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
        self.say("engine")

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
        for layer in self.model:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        for parameter in self.model.parameters():
            self.optimizer.state[parameter] = {
                "step": torch.tensor(0.0),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        self.done = 0
        state = ModuleState(self.model, self.optimizer, self.rank, lambda: self.done, self._set_done)
        control = PlainControl.make(self._store(), f"control.{prefix}", self.options.get("timeout_s", 120))
        restored = self.engine.open(control, state)
        self.say("open", **vars(restored), state=self.digest())

    def _store(self) -> Any:
        return dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, False, timedelta(seconds=30))

    def _set_done(self, step: int) -> None:
        self.done = step

    def digest(self) -> str:
        """Of the whole training state, the same on all ranks and at any world size."""
        total = hashlib.sha256()
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"]):
                total.update(tensor.full_tensor().detach().numpy().tobytes())
            total.update(state["step"].numpy().tobytes())
        total.update(str(self.done).encode())
        return total.hexdigest()[:16]

    def step(self) -> int | None:
        """One training step; returns the stop step if it is known."""
        step = self.done + 1
        self.engine.decide(step)
        data = torch.randn(12, self.model[0].in_features, generator=torch.Generator().manual_seed(step))
        share = 12 // self.world_size
        loss = self.model(data[self.rank * share : (self.rank + 1) * share]).square().mean()
        loss.backward()
        torch.rand(3)  # moves this rank's RNG
        self.engine.before_optimizer_step()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done = step
        self.engine.after_step(step)
        time.sleep(self.options.get("step_s", 0.0))
        return self.engine.stop_step()

    # orders

    def do_start(self) -> None:
        self.start()

    def do_train(self, upto: int) -> None:
        while self.done < upto:
            if self.step() == self.done:
                self.say("stopping", step=self.done)
                break
        self.say("trained", step=self.done, state=self.digest())

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

    def do_forget(self) -> None:
        """As if the pod were new."""
        for record in Path(self.options["shm"]).rglob(f"rank-{self.rank:05}.slot*.json"):
            record.unlink()
        dist.barrier()

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

    def do_request_stop(self, rank: int) -> None:
        if rank == self.rank:
            self.engine.request_stop("test")

    def do_rng(self) -> None:
        self.say("rng", value=torch.rand(4).tolist())

    def do_counts(self) -> None:
        """What must not grow."""
        import threading

        gc.collect()
        status = Path("/proc/self/status").read_text()
        self.say(
            "counts",
            rss_kib=int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]),
            threads=threading.active_count(),
            files=len(os.listdir("/proc/self/fd")),
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


def live(options: dict[str, Any]) -> None:
    """A rank's life: the orders, one after another."""
    torch.set_num_threads(1)
    rank = Rank(options)
    for name, *arguments in options["orders"]:
        try:
            getattr(rank, f"do_{name}")(*arguments)
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
        (plain_dcp.live if request["options"].get("plain") else live)(request["options"])

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
