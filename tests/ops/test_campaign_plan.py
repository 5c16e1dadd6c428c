"""Plans of campaigns: what they cover, and that a file always gives the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.campaign_plan import (
    BACKING_OFF,
    ONCE_A_RUN,
    CampaignPlan,
    CampaignSpec,
    When,
    load_spec,
    plan_campaign,
    void_reason,
)
from ops.errors import InvalidInputError
from trainer.config import CheckpointConfig, LoopConfig, OptimizerConfig, TrainConfig
from trainer.faults.schema import Fault, FaultClass, parse_faults

pytestmark = pytest.mark.unit

STOPPING = TrainConfig(optimizer=OptimizerConfig(non_finite="stop"), loop=LoopConfig(eval_every=15))


def faults_of(plan: CampaignPlan) -> Iterator[tuple[Fault, When]]:
    for run in plan.runs:
        for fault in run.faults:
            yield fault, run.whens[fault.id]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    world_size=st.sampled_from([1, 2, 4]),
    per_class=st.integers(1, 12),
    most=st.integers(1, 8),
    backing_off=st.integers(1, 3),
)
def test_every_valid_pair_is_struck_and_every_fault_file_is_valid(
    seed: int, world_size: int, per_class: int, most: int, backing_off: int
) -> None:
    spec = CampaignSpec(
        seed=seed, runs_per_class=per_class, max_faults_per_run=most, max_backing_off_per_run=backing_off
    )
    plan = plan_campaign(spec, STOPPING, world_size, "c")
    found = list(faults_of(plan))
    void = {(cell.class_, cell.when) for cell in plan.voids}
    assert {(f.class_, when) for f, when in found} == {(c, w) for c in FaultClass for w in When} - void
    ranks = {0, world_size // 2, world_size - 1}
    assert {(f.class_, f.rank) for f, _ in found} == {(c, r) for c in FaultClass for r in ranks}
    assert min(Counter(f.class_ for f, _ in found).values()) >= per_class
    for run in plan.runs:
        whens = Counter(run.whens.values())
        assert all(whens[when] <= 1 for when in ONCE_A_RUN)
        assert sum(f.class_ in BACKING_OFF for f in run.faults) <= backing_off
        entries = [f.model_dump(mode="json", by_alias=True) for f in run.faults]
        _, problems = parse_faults(entries, source=run.name, world_size=world_size, target_step=spec.steps)
        assert problems == []


def test_the_seed_alone_decides() -> None:
    first, again, other = (plan_campaign(CampaignSpec(seed=s), STOPPING, 2, "c") for s in (5, 5, 6))
    assert first == again != other


def test_a_fault_of_a_recovery_shares_its_step_with_what_it_interrupts() -> None:
    plan = plan_campaign(CampaignSpec(), STOPPING, 2, "c")
    for run in plan.runs:
        for fault in run.faults:
            if run.whens[fault.id] is When.RECOVERY:
                others = [o for o in run.faults if o.step == fault.step and o.id != fault.id]
                assert [run.whens[o.id] for o in others] == [When.STEP]


def test_the_phase_of_the_interval_is_drawn_uniformly() -> None:
    plan = plan_campaign(CampaignSpec(runs_per_class=40), STOPPING, 2, "c")
    phases = Counter(f.step % 10 for f, when in faults_of(plan) if when is When.STEP)
    assert set(phases) == set(range(10))
    assert max(phases.values()) < 3 * min(phases.values())


def test_saves_and_evaluations_are_struck_where_they_are() -> None:
    for fault, when in faults_of(plan_campaign(CampaignSpec(), STOPPING, 2, "c")):
        assert when is not When.SAVE or fault.step % 10 == 0
        assert when is not When.EVALUATION or fault.step % 15 == 0


def test_what_is_void_says_why() -> None:
    skipping = STOPPING.model_copy(update={"optimizer": OptimizerConfig(non_finite="skip")})
    assert "non_finite" in (void_reason(FaultClass.NAN, When.STEP, skipping) or "")
    assert void_reason(FaultClass.NAN, When.STEP, STOPPING) is None
    assert "over before" in (void_reason(FaultClass.NODE_LOSS, When.LAST_STEP, STOPPING) or "")
    silent = STOPPING.model_copy(update={"loop": LoopConfig(eval_every=0)})
    assert "eval_every" in (void_reason(FaultClass.SIGKILL, When.EVALUATION, silent) or "")


def test_all_that_is_wrong_with_a_campaign_is_said_at_once() -> None:
    timed = STOPPING.model_copy(update={"checkpoint": CheckpointConfig(persist_every="30s")})
    with pytest.raises(InvalidInputError) as refusal:
        plan_campaign(CampaignSpec(ranks=(7,), steps=20), timed, 2, "c")
    said = "\n".join(refusal.value.details)
    assert all(word in said for word in ("persist_every", "ranks: 7", "steps: 20"))


@pytest.mark.parametrize(
    ("text", "word"),
    [("seed: [", "not YAML"), ("classes: [sigkil]\nsteps: 0\n", "not a campaign"), (None, "No such file")],
)
def test_a_file_that_is_no_campaign_is_refused(tmp_path: Path, text: str | None, word: str) -> None:
    file = tmp_path / "c.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidInputError, match=word) as refusal:
        load_spec(file)
    assert word != "not a campaign" or len(refusal.value.details) == 2
