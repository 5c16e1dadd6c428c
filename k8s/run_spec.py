"""What a submission adds to its environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.environment import Environment
from environments.rules import not_ready
from k8s.names import DNS_LABEL_LIMIT, JOB_NAME_LIMIT, control_name, pod_labels
from trainer.config import TrainConfig
from trainer.faults.schema import Fault

RUN_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
DIGEST = re.compile(r"^[^\s@]+@sha256:[0-9a-f]{64}$")


class InvalidRunError(Exception):
    """Carries every problem of a run, each with its fix."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class RunSpec:
    """One submission of a run: a resumed run is the same run with the next submission."""

    name: str
    submission: int
    image: str
    """`repository@sha256:…`; a tag may change under a run that is replaced pod by pod."""
    faults: Sequence[Fault] = ()
    steps: int | None = None
    """Overrides `loop.steps`."""
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def job_name(self) -> str:
        """Name of the Job, its headless Service, and NVRx's rendezvous id."""
        return f"{self.name}-{self.submission}"

    def training(self, environment: Environment) -> TrainConfig:
        """The configuration that the container gets: this run's target, this instance type's peak."""
        training = environment.training
        loop = {"steps": self.steps or training.loop.steps}
        peak = training.loop.peak_tflops_per_gpu or environment.instance.peak_tflops_per_gpu
        changed = training.loop.model_copy(update={**loop, "peak_tflops_per_gpu": peak})
        return training.model_copy(update={"loop": changed})


def run_metadata(environment: Environment, run: RunSpec, name: str, role: str) -> dict[str, Any]:
    """Metadata of an object that belongs to a submission."""
    labels = {**run.labels, **pod_labels(run.name, run.submission, role)}
    return {"name": name, "namespace": environment.namespace, "labels": labels}


def check_run(environment: Environment, run: RunSpec) -> None:
    """Raises InvalidRunError with every problem of the run's names, image and faults."""
    problems = [
        *_name_problems(environment, run),
        *_image_problems(run),
        *_fault_problems(environment, run),
        *(str(problem) for problem in not_ready(environment)),
    ]
    if run.steps is not None and run.steps < 1:
        problems.append(f"steps: {run.steps} is below 1")
    if problems:
        raise InvalidRunError(problems)


def _name_problems(environment: Environment, run: RunSpec) -> list[str]:
    problems = []
    if not RUN_NAME.match(run.name):
        problems.append(f"run: {run.name!r} must be lower-case letters, digits and dashes, as in a host name")
    if run.submission < 1:
        problems.append(f"submission: {run.submission} is below 1; the first submission is 1")
    pods = environment.nodes + environment.spares
    last_host = f"{run.job_name}-{pods - 1}"
    room = min(
        JOB_NAME_LIMIT - len(run.job_name),
        DNS_LABEL_LIMIT - len(last_host),
        DNS_LABEL_LIMIT - len(control_name(run.job_name)),
    )
    if room < 0:
        problems.append(
            f"run: {run.name!r} is {-room} characters too long; the Job, its pods' host names and the control "
            f"pod's Service carry it and must stay within {DNS_LABEL_LIMIT}"
        )
    return problems


def _image_problems(run: RunSpec) -> list[str]:
    if DIGEST.match(run.image):
        return []
    return [f"image: {run.image!r} has no digest; use repository@sha256:… (`steadfast image push` prints it)"]


def _fault_problems(environment: Environment, run: RunSpec) -> list[str]:
    last = environment.world_size - 1
    return [
        f"faults: {fault.id}: rank {fault.rank} is out of range; the job has ranks 0 to {last}"
        for fault in run.faults
        if fault.rank > last
    ]
