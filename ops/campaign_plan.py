"""A campaign's plan: seeded, every valid (class, phase) and (class, rank) pair at least once, in few runs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from environments.shapes import from_pydantic
from ops.errors import InvalidInputError
from trainer.config import Settings, TrainConfig, parse_interval
from trainer.faults.schema import FROM_OUTSIDE, Fault, FaultClass, Phase


class When(StrEnum):
    """Where in the life of a run a fault strikes: the trainer's phases, and a run's first and last step."""

    START_UP = "start_up"
    LOAD = "load"
    FIRST_STEP = "first_step"
    STEP = "step"
    SAVE = "save"
    EVALUATION = "evaluation"
    RECOVERY = "recovery"
    LAST_STEP = "last_step"


ONCE_A_RUN = (When.START_UP, When.LOAD, When.FIRST_STEP, When.LAST_STEP)
BACKING_OFF = FROM_OUTSIDE | {FaultClass.SIGTERM}
"""After these the Job makes a pod again, and waits longer each time before it does."""
RESTARTING = frozenset(
    {FaultClass.EXCEPTION, FaultClass.SIGKILL, FaultClass.COLLECTIVE_HANG, FaultClass.SIGSTOP, FaultClass.GIL_HANG}
)
"""A second fault can strike while the job comes back from one of these."""
ARMED = frozenset({FaultClass.ENOSPC, FaultClass.SLOW_STORAGE})
BEFORE_THE_FIRST_SAVE = (When.START_UP, When.LOAD, When.FIRST_STEP)
SLOW_SECONDS = {FaultClass.SLOW_RANK: 0.1, FaultClass.SLOW_STORAGE: 2.0}
SLOW_STEPS = 10


class CampaignSpec(Settings):
    """A campaign file."""

    seed: int = 0
    steps: PositiveInt = 300
    """Target step of every run."""
    runs_per_class: PositiveInt = 10
    """Faults of each class at least; more where the pairs to cover ask for it."""
    classes: tuple[FaultClass, ...] = tuple(FaultClass)
    phases: tuple[When, ...] = tuple(When)
    ranks: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """None: the first, the middle and the last."""
    max_faults_per_run: PositiveInt = 8
    """Those of a run's start and of its last step come on top."""
    max_backing_off_per_run: PositiveInt = 2
    """Of sigterm, pod_kill, node_loss and control_loss: the Job's back-off doubles with each."""
    spacing_steps: PositiveInt = 25
    """Between two faults of a run, so that the one is over before the next."""
    limit_s: PositiveFloat = 1800.0
    """A run that takes longer has failed."""


@dataclass(frozen=True)
class Void:
    """A pair that has no fault, and why."""

    class_: FaultClass
    when: When
    reason: str


@dataclass(frozen=True)
class Shot:
    """One fault to be placed."""

    class_: FaultClass
    when: When
    rank: int


@dataclass(frozen=True)
class PlannedRun:
    """One run and its faults, by step."""

    name: str
    faults: tuple[Fault, ...]
    whens: dict[str, When]
    """By fault id."""


@dataclass(frozen=True)
class CampaignPlan:
    """What a campaign does."""

    runs: tuple[PlannedRun, ...]
    voids: tuple[Void, ...]


def load_spec(path: Path) -> CampaignSpec:
    """Raises InvalidInputError with every problem of the file."""
    try:
        data: Any = YAML(typ="safe", pure=True).load(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: {error}") from None
    except YAMLError as error:
        raise InvalidInputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    try:
        return CampaignSpec.model_validate(data or {})
    except ValidationError as error:
        details = [str(problem) for problem in from_pydantic(error, CampaignSpec)]
        raise InvalidInputError(f"{path} is not a campaign", details=details, fix="docs/campaigns.md") from None


def plan_campaign(spec: CampaignSpec, training: TrainConfig, world_size: int, stem: str) -> CampaignPlan:
    """The same file and environment give the same plan. Raises InvalidInputError with every problem."""
    interval = _checked(spec, training, world_size)
    draw = random.Random(spec.seed)
    voids, shots = [], list[Shot]()
    for class_ in spec.classes:
        reasons = {when: void_reason(class_, when, training) for when in spec.phases}
        voids += [Void(class_, when, reason) for when, reason in reasons.items() if reason]
        shots += _shots(class_, [w for w in spec.phases if not reasons[w]], _ranks(spec, world_size), spec, draw)
    draw.shuffle(shots)
    packer = _Packer(spec, training, interval, stem, draw)
    return CampaignPlan(tuple(packer.pack(shots)), tuple(voids))


def _checked(spec: CampaignSpec, training: TrainConfig, world_size: int) -> int:
    """The interval between saves in steps."""
    interval, _ = parse_interval(training.checkpoint.persist_every)
    problems = []
    if interval is None:
        problems.append("checkpoint.persist_every must be a number of steps: faults are drawn within the interval")
    problems += [
        f"ranks: {r} is out of range; the job has ranks 0 to {world_size - 1}"
        for r in spec.ranks or ()
        if r >= world_size
    ]
    needed = 2 * (interval or 1) + spec.spacing_steps * (spec.max_faults_per_run + 1)
    if spec.steps < needed:
        problems.append(
            f"steps: {spec.steps} are too few for {spec.max_faults_per_run} faults {spec.spacing_steps} steps "
            f"apart; {needed} are enough"
        )
    if problems:
        raise InvalidInputError("the campaign cannot be planned; nothing was started", details=problems)
    return interval or 1


def void_reason(class_: FaultClass, when: When, training: TrainConfig) -> str | None:
    """Why a class has no fault in a phase; None if it has."""
    if when is When.EVALUATION and not training.loop.eval_every:
        return "loop.eval_every is 0: nothing is evaluated"
    if class_ in ARMED and when is not When.STEP:
        return "acts on the saves that follow, whatever phase it is armed in"
    if class_ is FaultClass.CORRUPT_CHECKPOINT:
        if when in BEFORE_THE_FIRST_SAVE:
            return "there is no generation yet"
        if when is When.RECOVERY:
            return "a rank that is loading has nothing in memory that it could lose"
    if class_ is FaultClass.NAN:
        if training.optimizer.non_finite == "skip":
            return (
                "optimizer.non_finite is skip: the step is left out, so the end differs from the undisturbed run's"
            )
        if when not in (When.STEP, When.FIRST_STEP, When.LAST_STEP):
            return "is a property of a step's loss"
    if class_ is FaultClass.SLOW_RANK and when not in (When.STEP, When.FIRST_STEP):
        return "is a property of the steps that follow"
    if class_ in FROM_OUTSIDE and when is When.LAST_STEP:
        return "the run may be over before a blow from outside lands"
    return None


def _ranks(spec: CampaignSpec, world_size: int) -> list[int]:
    return sorted(set(spec.ranks or (0, world_size // 2, world_size - 1)))


def _shots(
    class_: FaultClass, whens: Sequence[When], ranks: Sequence[int], spec: CampaignSpec, draw: random.Random
) -> list[Shot]:
    if not whens:
        return []
    count = max(spec.runs_per_class, len(whens), len(ranks))
    # Once covered, what a run can hold only one of would ask for a run of its own.
    further = [when for when in whens if when not in (*ONCE_A_RUN, When.RECOVERY)] or whens
    drawn_whens = [*draw.sample(whens, len(whens)), *_cycled(further, count - len(whens), draw)]
    return [Shot(class_, w, r) for w, r in zip(drawn_whens, _cycled(ranks, count, draw), strict=True)]


def _cycled(values: Sequence[Any], count: int, draw: random.Random) -> list[Any]:
    """Each value once, in a drawn order, then again, until there are enough."""
    out: list[Any] = []
    while len(out) < count:
        out += draw.sample(values, len(values))
    return out[:count]


def _packing_order(shot: Shot) -> int:
    """What others can follow first, then what few fit of into a run, so that no run is made for them alone."""
    recovery, backing_off = shot.when is When.RECOVERY, shot.class_ in BACKING_OFF
    if shot.class_ in RESTARTING and shot.when is When.STEP:
        return 0
    return (1 if recovery else 2) if backing_off else (4 if recovery else 3)


class _Packer:
    """Puts shots into runs, and draws their steps."""

    def __init__(
        self, spec: CampaignSpec, training: TrainConfig, interval: int, stem: str, draw: random.Random
    ) -> None:
        self._spec, self._interval, self._stem, self._draw = spec, interval, stem, draw
        self._eval_every = training.loop.eval_every

    def pack(self, shots: Sequence[Shot]) -> list[PlannedRun]:
        """Runs until every shot has its place."""
        left = sorted(shots, key=_packing_order)
        packed: list[list[Shot]] = []
        while left:
            chosen = self._choose(left)
            if not chosen:  # recoveries alone are left: give them something to recover from
                left.insert(0, Shot(FaultClass.SIGKILL, When.STEP, left[0].rank))
                continue
            packed.append(chosen)
        self._draw.shuffle(packed)  # a campaign that is cut short has seen some of everything
        return [self._run(f"{self._stem}-{n:02d}", chosen) for n, chosen in enumerate(packed, start=1)]

    def _choose(self, left: list[Shot]) -> list[Shot]:
        """Takes one run's shots out of `left`."""
        chosen: list[Shot] = []
        for shot in list(left):
            if self._fits(shot, chosen):
                chosen.append(shot)
                left.remove(shot)
        return chosen

    def _fits(self, shot: Shot, chosen: Sequence[Shot]) -> bool:
        if shot.when in ONCE_A_RUN and any(other.when is shot.when for other in chosen):
            return False
        backing_off = sum(other.class_ in BACKING_OFF for other in chosen)
        if shot.class_ in BACKING_OFF and backing_off >= self._spec.max_backing_off_per_run:
            return False
        if shot.when is When.RECOVERY:
            free = sum(s.class_ in RESTARTING and s.when is When.STEP for s in chosen)
            return free > sum(s.when is When.RECOVERY for s in chosen)
        spaced = sum(other.when not in (*ONCE_A_RUN, When.RECOVERY) for other in chosen)
        return shot.when in ONCE_A_RUN or spaced < self._spec.max_faults_per_run

    def _run(self, name: str, chosen: Sequence[Shot]) -> PlannedRun:
        steps = self._steps(chosen)
        faults = [(self._fault(n, shot, steps[n]), shot.when) for n, shot in enumerate(chosen)]
        faults.sort(key=lambda pair: (pair[0].step, pair[1] is When.RECOVERY))
        return PlannedRun(name, tuple(f for f, _ in faults), {f.id: when for f, when in faults})

    def _steps(self, chosen: Sequence[Shot]) -> list[int]:
        """A step for each shot, with equal room between the spaced ones."""
        spaced = [n for n, shot in enumerate(chosen) if shot.when not in (*ONCE_A_RUN, When.RECOVERY)]
        begin, end = 2 * self._interval, self._spec.steps - self._interval
        room = (end - begin) // max(1, len(spaced))
        fixed = {When.LAST_STEP: self._spec.steps}
        steps = [fixed.get(shot.when, 1) for shot in chosen]
        for place, n in enumerate(spaced):
            steps[n] = self._within(chosen[n].when, begin + place * room)
        triggers = [n for n in spaced if chosen[n].class_ in RESTARTING and chosen[n].when is When.STEP]
        for n, shot in enumerate(chosen):
            if shot.when is When.RECOVERY:
                steps[n] = steps[triggers.pop(0)]
        return steps

    def _within(self, when: When, begin: int) -> int:
        """Uniform over the interval between saves; at the next save or evaluation where that is the phase."""
        step = begin + self._draw.randrange(self._interval)
        period = {When.SAVE: self._interval, When.EVALUATION: self._eval_every}.get(when, 1)
        return min(-(-step // period) * period, self._spec.steps - 1)

    def _fault(self, number: int, shot: Shot, step: int) -> Fault:
        phase = Phase(shot.when) if shot.when in Phase else Phase.STEP
        slow = shot.class_ in SLOW_SECONDS
        return Fault(
            id=f"{number:02d}-{shot.class_.value.replace('_', '-')}",
            class_=shot.class_,
            rank=shot.rank,
            step=step,
            phase=phase,
            duration_s=SLOW_SECONDS.get(shot.class_),
            num_steps=SLOW_STEPS if slow and shot.class_ is FaultClass.SLOW_RANK else 1,
        )
