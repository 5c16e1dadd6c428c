"""How fast a restore reads a generation, against plain reads of the same files: a ratio, both measured in one run.

    python tests/gpu/read_rates.py --out results --at /dev/shm /some/disk

Needs no GPU. One rank's generation is written by the writer itself. Then, repeat by repeat and in turn: plain
`preadv` of the same blocks into the same memory by the same number of threads, without any check; the restore's
own `fill_from_storage`, every block verified; and the checksums alone. From the page cache and, where the place
is not memory, from the storage itself, after the cache has been told to forget the files.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist
import xxhash

from trainer.checkpoint import reading
from trainer.checkpoint.chain import Position, take_attempt
from trainer.checkpoint.layout import Layout, plan, stamp_into
from trainer.checkpoint.reading import fill_from_storage, hash_slot
from trainer.checkpoint.records import Attempt, Slot, block_spans
from trainer.checkpoint.reports import Phase, poll
from trainer.checkpoint.writer import Request, handle
from trainer.paths import RunPaths

MIB = 1 << 20


@dataclass
class Generation:
    """One on disk, and the memory that it is read into."""

    directory: Path
    layout: Layout
    slot: torch.Tensor
    content: list[str]
    """Checksums of what was saved."""

    @property
    def data(self) -> Path:
        return self.directory / "__0_0.distcp"

    def forget(self) -> None:
        """Drop it from the page cache."""
        for path in self.directory.iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def shared_memory(directory: Path, name: str, nbytes: int) -> tuple[Path, torch.Tensor]:
    path = directory / name
    with path.open("wb") as file:
        file.truncate(nbytes)
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), nbytes)
    return path, torch.frombuffer(mapped, dtype=torch.uint8)


def make(root: Path, shm: Path, nbytes: int) -> Generation:
    """Fill an arena, have the writer write it, and empty it again."""
    count = max(1, nbytes // (64 * MIB))
    state = {f"model.{n}.weight": torch.zeros(4096, 4096) for n in range(count)}
    state |= {f"model.{n}.bias": torch.zeros(4096) for n in range(count)}
    layout = plan(state, {"progress.step": torch.tensor(1)}, dist.group.WORLD)
    del state
    arena, slot = shared_memory(shm, "arena", layout.slot_bytes)
    slot.view(torch.int64)[: slot.numel() // 8].random_(generator=torch.Generator().manual_seed(0))
    stamp_into(slot, layout)
    paths = RunPaths(root / "run")
    paths.make()
    position = Position(take_attempt(paths, Attempt(0, None, "none", 0, 1, time.time())).attempt, 1)
    request = Request(
        run_root=paths.root,
        generation=position.name,
        origin=None,
        arena=arena,
        slot_at=0,
        slot=Slot("r", "p", "b", 0, 1, position.attempt, position.step, layout.digest, layout.cuts, []),
        slot_record=shm / "slot.json",
        outcome=shm / "outcome",
        persist=True,
        metadata=layout.metadata_file,
        commit_timeout_s=600.0,
        keep=2,
        keep_spaced=0,
        write_threads=4,
    )
    handle(request)
    while (outcome := poll(request.outcome, Phase.DONE)) is None:
        time.sleep(0.05)
    assert outcome.ok, outcome.error
    content = hash_slot(slot, layout.cuts)
    return Generation(paths.checkpoints / position.name, layout, slot, content)


def read_plainly(generation: Generation, threads: int) -> None:
    """The same blocks, by as many threads, into the same place; nothing is checked."""
    memory = reading.as_memory(generation.slot)
    fd = os.open(generation.data, os.O_RDONLY)

    def read(span: tuple[int, int]) -> None:
        at, end = span
        while at < end:
            at += os.preadv(fd, [memory[at:end]], at)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(read, block_spans([0, generation.layout.file_bytes])):
            pass
    os.close(fd)


def read_as_restored(generation: Generation) -> None:
    filling = fill_from_storage(generation.directory, generation.layout, generation.slot)
    assert filling.read_bytes >= generation.layout.file_bytes


def ways(generation: Generation) -> dict[str, Callable[[], object]]:
    return {
        "plain": lambda: read_plainly(generation, reading.THREADS),
        "restore": lambda: read_as_restored(generation),
        "checksums": lambda: hash_slot(generation.slot, generation.layout.cuts),
    }


def measure(generation: Generation, repeats: int, *, cold: bool) -> dict[str, Any]:
    """Medians of GB/s, and the restore's share of the plain rate, repeat by repeat.

    Also by CPU time: what the share would be if nothing but the cores bounded both, whoever else uses them now.
    """
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways(generation)}
    for _ in range(repeats):
        for name, call in ways(generation).items():
            if cold:
                generation.forget()
            started, used = time.perf_counter(), time.process_time()
            call()
            spent[name].append((time.perf_counter() - started, time.process_time() - used))
            if name == "restore":
                assert hash_slot(generation.slot, generation.layout.cuts) == generation.content, (
                    "not what was saved"
                )
    nbytes = generation.layout.file_bytes
    return {
        "gb_s": {n: round(nbytes / statistics.median(s for s, _ in took) / 1e9, 2) for n, took in spent.items()},
        "gb_s_best": {n: round(nbytes / min(s for s, _ in took) / 1e9, 2) for n, took in spent.items()},
        "cpu_s_per_gb": {
            n: round(statistics.median(c for _, c in took) / nbytes * 1e9, 3) for n, took in spent.items()
        },
        "restore_share_of_plain": shares([s for s, _ in spent["plain"]], [s for s, _ in spent["restore"]]),
        "restore_share_of_plain_by_cpu_time": shares(
            [c for _, c in spent["plain"]], [c for _, c in spent["restore"]]
        ),
        "repeats": repeats,
    }


def shares(plain: list[float], restore: list[float]) -> dict[str, float]:
    """Of the plain rate: median and quartiles over the repeats."""
    ratios = [p / r for p, r in zip(plain, restore, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {"median": round(middle, 3), "q1": round(low, 3), "q3": round(high, 3)}


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for place in options.at:
        root = Path(tempfile.mkdtemp(prefix="read-rates-", dir=place))
        shm = Path(tempfile.mkdtemp(prefix="read-rates-", dir=options.shm))
        try:
            generation = make(root, shm, options.mib * MIB)
            in_memory = os.statvfs(place).f_fsid == os.statvfs(options.shm).f_fsid
            for cold in (False,) if in_memory else (False, True):
                if not cold:
                    read_plainly(generation, reading.THREADS)
                source = "memory file system" if in_memory else "storage" if cold else "page cache"
                yield {
                    "at": place, "from": source, "bytes": generation.layout.file_bytes,
                    **measure(generation, options.repeats, cold=cold),
                }  # fmt: skip
        finally:
            shutil.rmtree(root, ignore_errors=True)
            shutil.rmtree(shm, ignore_errors=True)


def machine() -> dict[str, Any]:
    model = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return {
        "cpu": model.split(":", 1)[1].strip(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "xxhash": xxhash.VERSION,
        "threads": reading.THREADS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", nargs="+", default=["/dev/shm", str(Path.cwd())], help="directories to read from")
    parser.add_argument("--shm", default="/dev/shm", help="where the arena lies")
    parser.add_argument("--mib", type=int, default=2048, help="bytes of the generation")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None, help="instead of the restore's own choice")
    parser.add_argument("--out", default=None, help="directory for read_rates.json")
    options = parser.parse_args()
    reading.THREADS = options.threads or reading.THREADS
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    result: dict[str, Any] = {**machine(), "cases": []}
    for case in cases(options):
        result["cases"].append(case)
        print(json.dumps(case), flush=True)
    if options.out:
        Path(options.out).mkdir(parents=True, exist_ok=True)
        (Path(options.out) / "read_rates.json").write_text(json.dumps(result, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
