"""What a node must have before its pod joins the job; anything missing means exit 91, and a pod elsewhere."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from trainer.paths import PodContext

EFA_DEVICES = Path("/sys/class/infiniband")
MIN_SHM_BYTES = 1 << 30
"""NCCL and the loader need about this much beside the arenas (nccl#525)."""


def problems(context: PodContext) -> list[str]:
    """Each thing that is wrong with this node, in words; empty when it may join. Makes the run's directories."""
    checks = (_storage(context), _shared_memory(context), _memlock(), _plugin())
    return [problem for problem in checks if problem]


def _storage(context: PodContext) -> str | None:
    probe = context.paths.root / f".probe.{context.pod}"
    try:
        context.paths.make()
        probe.write_bytes(b"probe")
        probe.unlink()
    except OSError as error:
        return f"{context.paths.root} cannot be written: {error}"
    return None


def _shared_memory(context: PodContext) -> str | None:
    try:
        context.shm.mkdir(parents=True, exist_ok=True)
        values = os.statvfs(context.shm)
    except OSError as error:
        return f"{context.shm} cannot be used: {error}"
    free_bytes = values.f_bavail * values.f_frsize
    if free_bytes < MIN_SHM_BYTES:
        return f"{context.shm} has {free_bytes >> 20} MiB free, {MIN_SHM_BYTES >> 20} MiB are needed"
    return None


def efa_present() -> bool:
    """Whether the pod was given EFA devices."""
    return EFA_DEVICES.is_dir() and any(EFA_DEVICES.iterdir())


def _memlock() -> str | None:
    if not efa_present():
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY:
        return f"memlock is limited to {soft} bytes; EFA registers memory (kubernetes#56374)"
    return None


def _plugin() -> str | None:
    """EFA without the OFI plugin is NCCL over sockets: it trains, thirty times slower."""
    if not efa_present():
        return None
    name = os.environ.get("NCCL_NET_PLUGIN", "")
    candidates = [name] if "/" in name else [f"libnccl-net-{name}.so", name, "libnccl-net.so"]
    search = [Path(part) for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    if any((directory / candidate).exists() for directory in search for candidate in candidates if candidate):
        return None
    return f"NCCL_NET_PLUGIN={name!r} is not in LD_LIBRARY_PATH; NCCL would fall back to sockets"
