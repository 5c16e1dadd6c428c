"""A submission: everything that can be wrong with it is said before anything is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from environments.environment import Environment
from environments.problems import Problem
from environments.shapes import from_pydantic
from k8s.resources import DoesNotFitError
from k8s.run_spec import InvalidRunError, RunSpec
from ops.errors import InvalidInputError
from ops.report.reference import ReferenceTime
from trainer.config import TrainConfig, resume_differences
from trainer.faults.schema import Fault, parse_faults

LOCAL_RANKS = 4
PLACEHOLDER_IMAGE = "none@sha256:" + "0" * 64
"""Stands in while everything else is checked, so that a missing image is one problem among all."""


@dataclass(frozen=True)
class Request:
    """What `submit` was asked."""

    run: str
    steps: int | None = None
    faults: Path | None = None
    resume: bool = False
    image: str | None = None
    local: bool = False


@dataclass(frozen=True)
class Plan:
    """A submission without problems."""

    environment: Environment
    spec: RunSpec
    manifests: list[dict[str, Any]]

    @property
    def training(self) -> TrainConfig:
        """The configuration that the container gets."""
        return self.spec.training(self.environment)

    def run_json(self, t_ref: ReferenceTime | None, substitutions: Mapping[str, str]) -> dict[str, Any]:
        """What ops knows of the run; the trainer adds versions and timeouts when it starts."""
        return {
            "schema": 1,
            "run": self.spec.name,
            "environment": self.environment.name,
            "submission": self.spec.submission,
            "image": self.spec.image,
            "world_size": self.environment.world_size,
            "nodes": self.environment.nodes,
            "spares": self.environment.spares,
            "config": self.training.model_dump(mode="json"),
            "faults": [fault.model_dump(mode="json", by_alias=True) for fault in self.spec.faults],
            "t_ref": t_ref.model_dump() if t_ref else None,
            "substitutions": dict(substitutions),
        }


def plan(environment: Environment, request: Request, existing: Mapping[str, Any] | None) -> Plan:
    """What to submit. `existing` is the run's run.json, if there is such a run.

    Raises InvalidInputError with every problem; nothing has been made then.
    """
    from k8s.training_job import run_manifests  # jsii: only when it is needed

    steps = request.steps if request.steps is not None else _own_target(request, existing)
    target = steps or environment.training.loop.steps
    faults, problems = _faults(request, environment, target)
    problems += _size_problems(environment, request)
    problems += _image_problems(request)
    submission = 1 + int(existing.get("submission", 0)) if existing else 1
    spec = RunSpec(request.run, submission, request.image or PLACEHOLDER_IMAGE, tuple(faults), steps)
    problems += _existing_problems(request, spec.training(environment) if target > 0 else None, existing)
    try:
        manifests = run_manifests(environment, spec)
    except InvalidRunError as error:
        problems += error.problems
    except DoesNotFitError as error:
        problems.append(str(error))
    if problems:
        raise InvalidInputError(
            f"run {request.run} in {environment.name} cannot be submitted; nothing was created",
            details=list(dict.fromkeys(problems)),
        )
    return Plan(environment, spec, manifests)


def _own_target(request: Request, existing: Mapping[str, Any] | None) -> int | None:
    """What a resumed run goes on to unless told otherwise: its own target, not the environment file's of today."""
    try:
        return int((existing or {})["config"]["loop"]["steps"]) if request.resume else None
    except (KeyError, TypeError, ValueError):  # `_existing_problems` says what is wrong with it
        return None


def _faults(request: Request, environment: Environment, target: int) -> tuple[Sequence[Fault], list[str]]:
    if request.faults is None:
        return [], []
    try:
        data = YAML(typ="safe", pure=True).load(request.faults)
    except (OSError, UnicodeDecodeError) as error:
        return [], [f"--faults: {error}"]
    except YAMLError as error:
        return [], [f"{request.faults}: not YAML: {' '.join(str(error).split())}"]
    return parse_faults(
        data,
        source=str(request.faults),
        world_size=environment.world_size,
        target_step=target,
        eval_every=environment.training.loop.eval_every,
        explain=_explain_fault,
    )


def _explain_fault(error: ValidationError) -> list[Problem]:
    """As problems of environment files are told."""
    found = from_pydantic(error, Fault)
    return [replace(problem, field="whole entry") if problem.field == "file" else problem for problem in found]


def _size_problems(environment: Environment, request: Request) -> list[str]:
    problems = []
    if request.steps is not None and request.steps < 1:
        problems.append(f"--steps: {request.steps} is below 1")
    if request.local and environment.world_size > LOCAL_RANKS:
        problems.append(
            f"--local: {environment.name} has {environment.world_size} ranks, and this machine runs at most "
            f"{LOCAL_RANKS}; `steadfast clone {environment.name} small --set nodes=2 --set "
            f"instance_type=p5.4xlarge` makes one that it can"
        )
    return problems


def _image_problems(request: Request) -> list[str]:
    if request.image or request.local:
        return []
    return ["image: is not set; `steadfast image push ENV` builds and pushes it and writes it into the file"]


def _existing_problems(
    request: Request, training: TrainConfig | None, existing: Mapping[str, Any] | None
) -> list[str]:
    if existing is None:
        return [f"--resume: there is no run {request.run} to resume"] if request.resume else []
    if not request.resume:
        return [f"--run: {request.run} exists; --resume goes on with it, another name starts another run"]
    try:
        before = TrainConfig.model_validate(existing["config"])
    except (ValidationError, KeyError):
        return [f"--resume: the configuration of run {request.run} was written by another version of steadfast"]
    return resume_differences(before, training) if training else []
