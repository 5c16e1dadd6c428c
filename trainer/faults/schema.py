"""Fault files: a YAML list of `{id, class, rank, step, …}`. Imports neither torch nor NVRx."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from trainer.config import Settings


class FaultClass(StrEnum):
    """What is broken. The layer that recovers each is in docs/faults.md."""

    EXCEPTION = "exception"
    COLLECTIVE_HANG = "collective_hang"
    SIGSTOP = "sigstop"
    SLOW_RANK = "slow_rank"
    NAN = "nan"
    SIGKILL = "sigkill"
    OOM = "oom"
    GIL_HANG = "gil_hang"
    SIGTERM = "sigterm"
    POD_KILL = "pod_kill"
    NODE_LOSS = "node_loss"
    CONTROL_LOSS = "control_loss"
    ENOSPC = "enospc"
    SLOW_STORAGE = "slow_storage"
    CORRUPT_CHECKPOINT = "corrupt_checkpoint"


FROM_OUTSIDE = frozenset({FaultClass.POD_KILL, FaultClass.NODE_LOSS, FaultClass.CONTROL_LOSS})
"""Done to the pod by whoever runs the cluster, not by the rank to itself."""


class Phase(StrEnum):
    """Where in the life of `step` the fault strikes."""

    START_UP = "start_up"
    LOAD = "load"
    STEP = "step"
    SAVE = "save"
    EVALUATION = "evaluation"
    RECOVERY = "recovery"
    """While the job comes back from another fault of the same step."""


class Fault(Settings):
    """One fault. It fires once per run, whatever restarts."""

    model_config = ConfigDict(populate_by_name=True)

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
    class_: Annotated[FaultClass, Field(alias="class")]
    rank: Annotated[int, Field(ge=0)] = 0
    step: Annotated[int, Field(ge=1)]
    phase: Phase = Phase.STEP
    duration_s: Annotated[float, Field(gt=0)] | None = None
    """Of slow_rank (added to each step), slow_storage (added to each fsync) and gil_hang."""
    num_steps: Annotated[int, Field(ge=1)] = 1
    """How many steps slow_rank and slow_storage last."""


_FILE = TypeAdapter(list[Fault])


def parse_faults(
    data: Any, *, source: str, world_size: int, target_step: int, eval_every: int | None = None
) -> tuple[list[Fault], list[str]]:
    """`(faults, problems)` of a parsed fault file. Every problem names file, entry, field and fix.

    `eval_every` is `loop.eval_every`; None: faults of the evaluation are not held against it.
    """
    try:
        faults = _FILE.validate_python(data)
    except ValidationError as error:
        return [], [_explain(source, item, data) for item in error.errors()]
    problems = []
    seen: set[str] = set()
    for number, fault in enumerate(faults):
        where = f"{source}: entry {number} ({fault.id})"
        if fault.id in seen:
            problems.append(f"{where}: id: used twice; a fault fires once per id")
        seen.add(fault.id)
        if fault.rank >= world_size:
            problems.append(
                f"{where}: rank: {fault.rank} is out of range; the job has ranks 0 to {world_size - 1}"
            )
        if fault.step > target_step:
            problems.append(f"{where}: step: {fault.step} is beyond the target step {target_step}; it never fires")
        elif problem := _never_reached(fault, eval_every):
            problems.append(f"{where}: {problem}; it never fires")
    return faults, problems


def _never_reached(fault: Fault, eval_every: int | None) -> str | None:
    """Why the fault's rank is never at this phase of this step; None if it is, or somebody else strikes."""
    if fault.class_ in FROM_OUTSIDE:
        return None
    if fault.phase in (Phase.START_UP, Phase.LOAD) and fault.step != 1:
        return f"step: {fault.phase} is before the first step, so it is 1 and not {fault.step}"
    if fault.phase is Phase.EVALUATION and eval_every is not None:
        if eval_every == 0:
            return "phase: loop.eval_every is 0, so there is no evaluation"
        if fault.step % eval_every:
            return f"step: {fault.step} has no evaluation; choose a multiple of loop.eval_every, {eval_every}"
    return None


def _explain(source: str, item: Any, data: Any) -> str:
    location = [str(part) for part in item["loc"]]
    entry = ""
    if location and location[0].isdigit() and isinstance(data, list):
        raw = data[int(location[0])]
        name = raw.get("id") if isinstance(raw, dict) else None
        entry = f"entry {location[0]}" + (f" ({name})" if name else "") + ": "
        location = location[1:]
    field = ".".join(location) or "(whole entry)"
    return f"{source}: {entry}{field}: {item['msg']}"


def dump_faults(faults: list[Fault]) -> str:
    """JSON for STEADFAST_FAULTS."""
    return _FILE.dump_json(faults, by_alias=True).decode()


def load_dumped(text: str) -> list[Fault]:
    """The inverse of `dump_faults`."""
    return _FILE.validate_json(text)
