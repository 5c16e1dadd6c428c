"""When to save: fixed intervals, and Young/Daly from what a save was measured to cost."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer.checkpoint.interval import DAY_S, FIRST_AUTO_STEPS, Interval, SaveCost, young_daly_s
from trainer.config import CheckpointConfig

pytestmark = pytest.mark.unit

AUTO = CheckpointConfig(persist_every="auto", failures_per_day=24)
seconds = st.floats(0, 1e7, allow_nan=False)


def test_young_daly_against_a_published_value() -> None:
    """Daly 2006: cost 5 min, MTBF 24 h: Young's first order is 2 h minus the cost."""
    interval_s = young_daly_s(300, DAY_S)
    assert 0.9 * (2 * 300 * DAY_S) ** 0.5 < interval_s < (2 * 300 * DAY_S) ** 0.5
    assert young_daly_s(10, 5) == 5


def test_auto_never_asks_more_than_the_storage_takes() -> None:
    config = CheckpointConfig(persist_every="auto", failures_per_day=1000)
    interval = Interval(config, last_step=0, last_s=0.0, cost_s=0.01, persist_s=30.0)
    assert interval.due(5, 29.0) is None
    reason = interval.due(5, 30.5)
    assert reason is not None and "30.0 s from launch to commit" in reason and "0.010 s a save" in reason


@pytest.mark.parametrize(
    ("every", "step", "now_s", "due"),
    [(10, 20, 0.0, True), (10, 21, 99.0, False), ("30s", 3, 29.9, False), ("30s", 3, 30.0, True)],
)
def test_fixed_intervals(every: Any, step: int, now_s: float, due: bool) -> None:
    assert (Interval(CheckpointConfig(persist_every=every), 0, 0.0).due(step, now_s) is not None) == due


def test_cost_of_a_save_is_the_excess_of_the_steps_beside_it() -> None:
    cost = SaveCost()
    for took_s, saving in [(1.0, False)] * 5 + [(1.4, True), (1.1, True), (1.0, False)]:
        cost.step(took_s, saving=saving)
    assert cost.last_s == pytest.approx(0.5)


@given(cost_s=seconds, mtbf_s=st.floats(1e-3, 1e9))
@example(cost_s=5e-324, mtbf_s=0.25)
def test_any_cost_and_rate_give_an_interval_that_is_not_negative(cost_s: float, mtbf_s: float) -> None:
    interval_s = young_daly_s(cost_s, mtbf_s)
    assert math.isfinite(interval_s) and interval_s >= 0


@given(cost_s=st.floats(1e-3, 1e4), mtbf_s=st.floats(1, 1e8))
def test_the_interval_loses_no_more_than_its_neighbours(cost_s: float, mtbf_s: float) -> None:
    """Saves cost `cost / interval`, a failure costs half an interval and the save: the sum has its least there."""

    def lost(interval_s: float) -> float:
        return cost_s / interval_s + (interval_s / 2 + cost_s) / mtbf_s

    if cost_s < mtbf_s / 100:  # Daly's higher orders differ from this sum where saves are nearly as long as lives
        best = lost(young_daly_s(cost_s, mtbf_s))
        assert all(best <= 1.02 * lost(math.sqrt(2 * cost_s * mtbf_s) * factor) for factor in (0.5, 0.9, 1.1, 2))


@given(cost_s=seconds, persist_s=seconds, failures=st.floats(1e-6, 1e6))
def test_auto_is_never_below_what_the_storage_takes(cost_s: float, persist_s: float, failures: float) -> None:
    """Hostile: no cost, costs above the interval, a failure every tenth of a second."""
    config = CheckpointConfig(persist_every="auto", failures_per_day=failures)
    interval_s, inputs = Interval(config, 0, 0.0, cost_s, persist_s).choose()
    assert math.isfinite(interval_s) and interval_s >= persist_s and interval_s > 0
    assert f"{cost_s:.3f} s a save" in inputs and f"{failures:g} failures a day" in inputs
    assert f"{persist_s:.1f} s from launch to commit" in inputs and f"auto: {interval_s:.1f} s" in inputs


def test_a_save_that_costs_nothing_is_not_taken_at_every_step() -> None:
    """A measured cost of zero is below what can be measured, not a licence to save without end."""
    interval_s, _ = Interval(AUTO, 0, 0.0, cost_s=0.0, persist_s=0.0).choose()
    assert interval_s == pytest.approx(math.sqrt(2 * 1e-3 * 3600), rel=0.01)


def test_a_save_that_costs_more_than_a_life_is_taken_once_a_life() -> None:
    interval_s, _ = Interval(AUTO, 0, 0.0, cost_s=10_000.0, persist_s=1.0).choose()
    assert interval_s == 3600


@pytest.mark.parametrize("failures", [0, -1, math.nan])
def test_a_rate_that_means_nothing_is_refused(failures: float) -> None:
    """Without failures there is no best interval."""
    with pytest.raises(ValueError, match="failures_per_day"):
        CheckpointConfig(persist_every="auto", failures_per_day=failures)


def test_auto_measures_first() -> None:
    interval = Interval(AUTO, last_step=100, last_s=0.0)
    assert interval.due(100 + FIRST_AUTO_STEPS - 1, 1e9) is None
    assert "nothing measured yet" in str(interval.due(100 + FIRST_AUTO_STEPS, 0.0))


@pytest.mark.parametrize(
    ("every", "cost_s", "persist_s", "unmeasured"),
    [("auto", None, None, True), ("auto", 0.1, None, True), ("auto", None, 1.0, True), ("auto", 0.1, 1.0, False),
     (10, None, None, False), ("30s", None, None, False)],
)  # fmt: skip
def test_only_auto_needs_to_measure(
    every: Any, cost_s: float | None, persist_s: float | None, unmeasured: bool
) -> None:
    interval = Interval(CheckpointConfig(persist_every=every), 0, 0.0, cost_s, persist_s)
    assert interval.unmeasured == unmeasured


def test_auto_counts_from_the_save_that_was_decided_last() -> None:
    interval = Interval(AUTO, 0, 0.0, cost_s=0.5, persist_s=1.0)
    interval_s, _ = interval.choose()
    interval.saved(7, 500.0)
    assert interval.due(8, 500.0 + interval_s - 0.1) is None
    assert interval.due(9, 500.0 + interval_s + 0.1) is not None


def test_steps_that_are_faster_beside_a_save_do_not_make_it_gain_time() -> None:
    cost = SaveCost()
    for took_s, saving in [(1.0, False)] * 5 + [(0.5, True), (1.0, False)]:
        cost.step(took_s, saving=saving)
    assert cost.last_s == 0.0


def test_nothing_is_known_of_a_save_before_an_undisturbed_step() -> None:
    cost = SaveCost()
    cost.step(5.0, saving=True)
    cost.step(1.0, saving=False)
    assert cost.last_s is None
