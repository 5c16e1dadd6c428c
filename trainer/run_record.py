"""run.json: the configuration as run. Made by rank 0 of the first start, kept by every later one."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch

from trainer.config import TrainConfig, resume_differences
from trainer.files import write_durably
from trainer.paths import PodContext
from trainer.timeouts import Timeouts

log = logging.getLogger("steadfast")

SCHEMA = 1


class OtherConfigurationError(Exception):
    """The run was begun with another configuration; carries every difference."""


def record_run(context: PodContext, config: TrainConfig, *, world_size: int, timeouts: Timeouts) -> None:
    """Write run.json, or check that it describes this same run; what others put there stays.

    Raises OtherConfigurationError naming every setting that differs, and OSError.
    """
    log.info("timeouts: %s", timeouts)
    path = context.paths.run_json
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if "config" in before:
        problems = resume_differences(TrainConfig.model_validate(before["config"]), config)
        if problems:
            raise OtherConfigurationError(f"{path}: " + "; ".join(problems))
    dumped = config.model_dump(mode="json")
    record = {
        **before,
        "schema": SCHEMA,
        "run": context.run,
        "config": dumped,
        "config_sha256": hashlib.sha256(json.dumps(dumped, sort_keys=True).encode()).hexdigest(),
        "image": os.environ.get("STEADFAST_IMAGE"),
        "world_size": world_size,
        "versions": versions(),
        "timeouts": asdict(timeouts),
        "faults": json.loads(context.faults_json),
    }
    if record != before:
        write_durably(path, json.dumps(record, indent=1).encode())


def versions() -> dict[str, str]:
    """Of everything that a figure may depend on."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nvidia-resiliency-ext": version("nvidia-resiliency-ext"),
        "kernel": platform.release(),
    }
    if torch.cuda.is_available():
        found |= {
            "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "gpu": torch.cuda.get_device_name(),
        }
    return found
