"""Is a run fit to give another one its reference step time? Docs/goodput.md says what a control run is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ops.report.run_directory import Run
from trainer.config import TrainConfig
from trainer.events import Event

STEP_TIME_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "model": (),  # all of it
    "data": ("sequence_length", "global_batch_size", "num_workers"),
    "loop": ("micro_batch_size", "activation_checkpointing", "compile", "precision"),
}
"""What decides how long a step takes; seeds, targets and intervals do not."""


def control_problems(control: Run, training: TrainConfig, world_size: int) -> list[str]:
    """Why `control` is no control run for a run of `training` on `world_size` ranks; none if it is one."""
    content = json.loads(control.paths.run_json.read_text())
    return [*_disturbances(control, content), *_differences(content, training, world_size)]


def _disturbances(control: Run, content: Mapping[str, Any]) -> list[str]:
    problems = []
    planned = {str(fault["id"]) for fault in content.get("faults") or []}
    struck = {str(record.fields["id"]) for record in control.ledger.of_event(Event.FAULT_INJECTED)}
    if faults := sorted(planned | struck):
        problems.append(f"it is not undisturbed: faults were planned for it ({', '.join(faults)})")
    if control.ledger.of_event(Event.FAILURE_DETECTED, Event.INTERRUPTED):
        problems.append("it is not undisturbed: its ranks were restarted after a failure")
    if not control.ledger.of_event(Event.FINAL):
        problems.append("it has not reached its target")
    return problems


def _differences(content: Mapping[str, Any], training: TrainConfig, world_size: int) -> list[str]:
    """Defaults stand for what an older version did not write."""
    problems = []
    if (ranks := content.get("world_size", world_size)) != world_size:
        problems.append(f"it had {ranks} ranks, and this run has {world_size}")
    wanted = training.model_dump(mode="json")
    for section, names in STEP_TIME_SETTINGS.items():
        had = content["config"].get(section) or {}
        for name in names or wanted[section]:
            now = wanted[section][name]
            if (before := had.get(name, now)) != now:
                problems.append(f"{section}.{name}: it had {before!r}, and this run has {now!r}")
    return problems
