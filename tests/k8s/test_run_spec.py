"""What a submission may not be, each with its message."""

from __future__ import annotations

from typing import Any

import cdk8s
import pytest

from k8s.run_spec import InvalidRunError, RunSpec, check_run
from k8s.training_job import run_charts
from trainer.faults.schema import Fault, FaultClass

pytestmark = pytest.mark.unit
OUT_OF_RANGE = Fault(id="f", class_=FaultClass.SIGKILL, rank=16, step=1)
IMAGE = "registry.example.com/trainer@sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (RunSpec("Bad_Name", 1, IMAGE), "lower-case letters, digits and dashes"),
        (RunSpec("r", 0, IMAGE), "the first submission is 1"),
        (RunSpec("r", 1, "trainer:latest"), "has no digest"),
        (RunSpec("r", 1, IMAGE, steps=0), "steps: 0 is below 1"),
        (RunSpec("r" * 54, 1, IMAGE), "is 1 characters too long"),
        (
            RunSpec("r", 1, IMAGE, faults=[Fault(id="f", class_=FaultClass.SIGKILL, rank=16, step=1)]),
            "ranks 0 to 15",
        ),
    ],
)
def test_refused_with_what_to_change(environment: Any, run: RunSpec, said: str) -> None:
    with pytest.raises(InvalidRunError) as caught:
        check_run(environment, run)
    assert len(caught.value.problems) == 1
    assert said in str(caught.value)


def test_every_problem_at_once(environment: Any) -> None:
    with pytest.raises(InvalidRunError) as caught:
        run_charts(cdk8s.App(), environment, RunSpec("Bad", 0, "x", steps=0))
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("nodes", [1, 2, 8, 64])
def test_the_longest_allowed_name_fits_everywhere(make_environment: Any, nodes: int) -> None:
    environment = make_environment(nodes=nodes, spares=2, training={"data": {"global_batch_size": nodes * 8}})
    name = next(
        "r" * length for length in range(63, 0, -1) if _accepted(environment, RunSpec("r" * length, 10, IMAGE))
    )
    job = RunSpec(name, 10, IMAGE).job_name
    assert len(job) <= 61
    assert max(len(f"{job}-{nodes + 1}"), len(f"{job}-control")) <= 63
    assert len(name) >= 50


def _accepted(environment: Any, run: RunSpec) -> bool:
    try:
        check_run(environment, run)
    except InvalidRunError:
        return False
    return True


def test_a_zone_that_is_still_unknown(make_environment: Any) -> None:
    environment = make_environment(availability_zone="from-reservation")
    with pytest.raises(InvalidRunError, match="check research --write"):
        check_run(environment, RunSpec("r", 1, IMAGE))
