"""What counts as recovered, and the tables made of it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from environments.environment import find, load
from ops.campaign import Campaign, Records, judge
from ops.campaign_plan import CampaignPlan, CampaignSpec, PlannedRun, Void, When
from ops.campaign_table import class_rows, markdown, problem_rows, quantile_of, verdict, void_rows
from ops.console import Output
from ops.errors import InvalidInputError, RefusedError
from ops.follow import End, Outcome
from ops.report.recovery import FaultFigures
from ops.submission import Finished
from trainer.faults.schema import Fault, FaultClass

pytestmark = pytest.mark.unit

KILL = Fault(id="kill", class_=FaultClass.SIGKILL, rank=1, step=30)
RAISE = Fault(id="raise", class_=FaultClass.EXCEPTION, rank=0, step=60)
PLANNED = PlannedRun("c-01", (KILL, RAISE), {"kill": When.STEP, "raise": When.RECOVERY})


def figures(fault: Fault, *, recovered: bool = True, recovery_s: float = 4.0, lost_steps: int = 3) -> FaultFigures:
    return FaultFigures.model_validate(
        {
            "id": fault.id,
            "class": fault.class_.value,
            "rank": fault.rank,
            "step": fault.step,
            "recovered": recovered,
            "layer": "launcher",
            "detect_s": 0.1,
            "restart_s": 3.0,
            "recovery_s": recovery_s,
            "new_ground_s": 5.0,
            "lost_steps": lost_steps,
            "attempt": 2,
            "t": [0.0] * 7,
        }
    )


class FakeSummary:
    """As much of a summary as judging reads."""

    wall_s = 60.0

    def __init__(self, sha256: str | None, *faults: FaultFigures) -> None:
        self.params_sha256, self.faults = sha256, list(faults)


def finished(summary: Any, end: End = End.REACHED) -> Finished:
    return Finished("c-01", Outcome(end, "why"), summary, None)


def problems_of(end: Finished) -> list[str]:
    return [fault.problem for fault in judge(PLANNED, end, "aa").faults]


def test_recovered_with_the_same_parameters_counts() -> None:
    assert problems_of(finished(FakeSummary("aa", figures(KILL), figures(RAISE)))) == ["", ""]


@pytest.mark.parametrize(
    ("end", "problems"),
    [
        (
            finished(FakeSummary("bb", figures(KILL), figures(RAISE))),
            ["the parameters differ from the undisturbed run's"] * 2,
        ),
        (finished(FakeSummary("aa", figures(KILL))), ["", "did not strike"]),
        (finished(FakeSummary("aa", figures(KILL, recovered=False), figures(RAISE))), ["not recovered", ""]),
        (
            finished(FakeSummary(None, figures(KILL)), End.FAILED),
            ["the run failed: why", "did not strike; the run failed: why"],
        ),
        (finished(None, End.GONE), ["did not strike; the run gone: why"] * 2),
    ],
)
def test_anything_else_does_not_and_says_why(end: Finished, problems: list[str]) -> None:
    assert problems_of(end) == problems


def records(*runs: tuple[PlannedRun, Finished]) -> Records:
    kept = Records(plan="p", machine="2 × cpu", versions={"torch": "2"}, params_sha256="aa")
    for planned, end in runs:
        kept.runs[planned.name] = judge(planned, end, "aa")
    return kept


def test_tables_give_k_of_n_and_measured_quantiles() -> None:
    runs = []
    for number in range(1, 11):
        planned = PlannedRun(f"c-{number:02d}", (KILL,), {"kill": When.STEP})
        summary: Any = FakeSummary(
            "aa", figures(KILL, recovered=number < 10, recovery_s=float(number), lost_steps=number)
        )
        runs.append((planned, finished(summary)))
    kept = records(*runs)
    faults = [fault for run in kept.runs.values() for fault in run.faults]
    (row,) = class_rows(faults)
    assert row == ("sigkill", "9/10", "launcher 9", "0.1 s", "5.0 s", "9.0 s", "9.0 s", "5", "9", "9")
    assert verdict(faults).startswith("9/10 ")
    assert problem_rows(faults) == [("c-10", "kill", "step, rank 1", "not recovered")]
    assert Records.model_validate_json(kept.model_dump_json(by_alias=True)) == kept


def test_void_cells_are_told_by_reason() -> None:
    voids = (Void(FaultClass.NAN, When.SAVE, "x"), Void(FaultClass.NAN, When.LOAD, "x"))
    assert void_rows(voids) == [("nan", "save, load", "x")]
    text = markdown(records((PLANNED, finished(None, End.GONE))), CampaignPlan((PLANNED,), voids))
    assert "| nan | save, load | x |" in text and "0/2 faults" in text and "torch 2" in text


@pytest.mark.parametrize(("quantile", "value"), [(0.5, 2.0), (0.9, 4.0), (1.0, 4.0), (0.25, 1.0)])
def test_quantiles_are_values_that_were_measured(quantile: float, value: float) -> None:
    assert quantile_of([4.0, 1.0, 3.0, 2.0], quantile) == value


def test_two_at_once_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADFAST_LOCAL", str(tmp_path))
    world: Any = SimpleNamespace(call=SimpleNamespace(environment=load(find("local")), output=Output()))
    campaign = Campaign(CampaignSpec(), CampaignPlan((), ()), world, "c")
    (campaign.folder).mkdir(parents=True)
    with (campaign.folder / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(RefusedError, match="under way"):
            campaign.run()


def test_a_campaign_goes_on_only_with_what_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEADFAST_LOCAL", str(tmp_path))
    world: Any = SimpleNamespace(call=SimpleNamespace(environment=load(find("local")), output=Output()))
    plan = CampaignPlan((PLANNED,), ())
    begun = Campaign(CampaignSpec(seed=1), plan, world, "c")
    kept = records((PLANNED, finished(FakeSummary("aa", figures(KILL), figures(RAISE)))))
    kept.plan = begun.digest()
    begun.keep(kept)
    assert begun.run() == kept, "a run that has ended was run again"
    with pytest.raises(InvalidInputError, match="another file or environment"):
        Campaign(CampaignSpec(seed=2), plan, world, "c").run()
