"""Fault files: a YAML list of `{id, class, rank, step, …}`. Imports neither torch nor NVRx."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


Explain = Callable[[ValidationError], Iterable[object]]
"""Problems of one entry's shape, each with its field and fix."""


def _in_pydantic_s_words(error: ValidationError) -> Iterable[str]:
    return [f"{'.'.join(map(str, item['loc'])) or 'whole entry'}: {item['msg']}" for item in error.errors()]


def parse_faults(
    data: Any,
    *,
    source: str,
    world_size: int,
    target_step: int,
    eval_every: int | None = None,
    explain: Explain = _in_pydantic_s_words,
) -> tuple[list[Fault], list[str]]:
    """`(faults, problems)` of a parsed fault file. Every problem names file, entry, field and fix.

    `eval_every` is `loop.eval_every`; None: faults of the evaluation are not held against it.
    """
    faults, problems = _entries(data, source, explain)
    if problems:
        return [], problems
    seen: set[str] = set()
    for number, fault in enumerate(faults):
        where = f"{source}: entry {number} ({fault.id})"
        if fault.id in seen:
            problems.append(f"{where}: id: used twice; a fault fires once per id")
        seen.add(fault.id)
        if fault.rank >= world_size:
            problems.append(
                f"{where}: rank: {fault.rank} is out of range; the job has ranks 0 to {world_size - 1}; "
                "name one of them"
            )
        if fault.step > target_step:
            problems.append(
                f"{where}: step: {fault.step} is beyond the target step {target_step}; it never fires; "
                "name an earlier step, or train longer"
            )
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


def _entries(data: Any, source: str, explain: Explain) -> tuple[list[Fault], list[str]]:
    if not isinstance(data, list):
        return [], [f"{source}: holds no list; a fault file is a list of entries; begin each with `- {{id: …`"]
    faults, problems = [], []
    for number, entry in enumerate(data):
        try:
            faults.append(Fault.model_validate(entry))
        except ValidationError as error:
            name = entry.get("id") if isinstance(entry, dict) else None
            where = f"{source}: entry {number}" + (f" ({name})" if name else "")
            problems += [f"{where}: {problem}" for problem in explain(error)]
    return faults, problems


def dump_faults(faults: list[Fault]) -> str:
    """JSON for STEADFAST_FAULTS."""
    return _FILE.dump_json(faults, by_alias=True).decode()


def load_dumped(text: str) -> list[Fault]:
    """The inverse of `dump_faults`."""
    return _FILE.validate_json(text)
