"""The report's figures, on ledgers whose truth is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops.report.buckets import Bucket, buckets_s, timeline
from ops.report.checkpoints import checkpoint_figures
from ops.report.ledger import Ledger
from ops.report.recovery import fault_figures
from ops.report.reference import ReferenceTime, reference_time
from ops.report.steps import attempts, lost_steps, useful_steps
from ops.report.summary import EmptyLedgerError, RunInfo, Summary, summarize
from trainer.events import Event

pytestmark = pytest.mark.unit

Simulate = Callable[..., Any]
near = partial(pytest.approx, abs=1e-4)  # a double holds Unix seconds to a quarter of a microsecond
T_REF = ReferenceTime(median_s=0.1, spread_s=0.01, n=60)
shared = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def start(simulate: Simulate, **how: Any) -> Any:
    sim = simulate(**how)
    sim.launch()
    sim.processes()
    sim.open(0)
    return sim


def relaunch(sim: Any, load: int, **how: Any) -> None:
    sim.detect()
    sim.processes()
    sim.open(load, **how)


def run_info(target: int, t_ref: ReferenceTime | None = T_REF) -> RunInfo:
    return RunInfo(run="r", target_step=target, t_ref=t_ref)


disturbance = st.tuples(
    st.sampled_from(["launcher", "in_process"]),
    st.integers(0, 12),  # steps before it
    st.integers(0, 15),  # how far the next attempt goes back
    st.sampled_from([None, "group", "load"]),  # another fault during that recovery
    st.booleans(),  # an evaluation before it
)


def play(simulate: Simulate, plan: list[Any], world_size: int, tail: int) -> Any:
    sim = start(simulate, world_size=world_size)
    for layer, steps, back, again, evaluation in plan:
        sim.steps(steps, blocked_s=0.004, saving=steps % 2 == 0)
        if evaluation:
            sim.evaluate()
        sim.fault("sigkill" if layer == "launcher" else "exception")
        load = max(0, sim.position - back)
        disturb(sim, layer, load, again)
    sim.steps(tail)
    sim.save()
    sim.finish()
    return sim


def disturb(sim: Any, layer: str, load: int, again: str | None) -> None:
    if again:
        sim.detect()
        sim.processes()
        if again == "load":
            sim.open(load, restored=False)
        sim.fault("sigkill")
        load = min(load, sim.position)
    if layer == "launcher" or again:
        relaunch(sim, load)
    else:
        sim.interrupt()
        sim.open(load, layer="in_process")


@shared
@given(
    plan=st.lists(disturbance, max_size=5),
    world_size=st.integers(1, 4),
    tail=st.integers(1, 30),
    t_ref_s=st.none() | st.floats(0.01, 0.5),
)
def test_buckets_are_exclusive_and_exhaustive(
    simulator: Simulate, plan: list[Any], world_size: int, tail: int, t_ref_s: float | None
) -> None:
    sim = play(simulator, plan, world_size, tail)
    ledger = Ledger.of(sim.rows)
    intervals = timeline(ledger, t_ref_s)
    for before, after in itertools.pairwise(intervals):
        assert after.begin == pytest.approx(before.end, abs=1e-6)
    assert intervals[0].begin == near(ledger.begin)
    assert intervals[-1].end == near(ledger.end)
    for interval in intervals:
        assert min(interval.shares.values()) >= -1e-6
        assert sum(interval.shares.values()) == pytest.approx(interval.end - interval.begin, abs=1e-6)
    buckets = buckets_s(ledger, t_ref_s)
    wall_s = ledger.end - ledger.begin
    assert sum(buckets.values()) == pytest.approx(wall_s, rel=1e-3)
    assert buckets["unknown"] <= 0.01 * wall_s
    if t_ref_s is None:
        assert buckets["slowdown"] == 0


@shared
@given(plan=st.lists(disturbance, max_size=6), world_size=st.integers(1, 4), tail=st.integers(1, 10))
def test_lost_steps_are_the_steps_done_more_than_once(
    simulator: Simulate, plan: list[Any], world_size: int, tail: int
) -> None:
    sim = play(simulator, plan, world_size, tail)
    ledger = Ledger.of(sim.rows)
    of = attempts(ledger)
    useful = useful_steps(ledger)
    assert useful == sim.position
    assert lost_steps(of) == sim.lost == sim.executed - useful
    figures = fault_figures(ledger)
    assert len(figures) == sim.faults
    assert sum(figure.lost_steps for figure in figures) == sim.lost
    assert all(figure.recovered for figure in figures)


@shared
@given(plan=st.lists(disturbance, min_size=1, max_size=4), tail=st.integers(20, 25))
def test_the_marks_of_a_recovery_come_in_order(simulator: Simulate, plan: list[Any], tail: int) -> None:
    sim = play(simulator, plan, 2, tail)
    for figure in fault_figures(Ledger.of(sim.rows)):
        passed = [time for time in figure.t if time is not None]
        assert len(figure.t) == 7
        assert passed == sorted(passed)
        assert figure.recovery_s is not None and figure.recovery_s > 0


def test_a_launcher_recovery_is_timed_part_by_part(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(20)
    sim.save()
    sim.steps(4)
    sim.fault("sigkill")
    relaunch(sim, 20)
    sim.steps(10)
    sim.finish()
    [figure] = fault_figures(Ledger.of(sim.rows))
    assert (figure.class_, figure.rank, figure.layer, figure.recovered) == ("sigkill", 1, "launcher", True)
    assert (figure.lost_steps, figure.attempt) == (4, 2)
    assert figure.detect_s == near(0.05)
    # stop 1.0, gap 0.4, imports 1.0, then group, build and load of 0.2 each
    assert figure.restart_s == near(3.0)
    assert figure.recovery_s == near(0.05 + 3.0 + 0.1)
    # steps 21 to 24 again, then 25, which nobody had done
    assert figure.new_ground_s == near(0.05 + 3.0 + 0.5)


def test_a_rank_may_be_struck_while_another_ends_the_step_before(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(6)
    sim.wait(-0.0005)  # rank 0 is already in step 7 when rank 1 records the end of step 6
    sim.fault("sigkill", after_s=0.0)
    sim.wait(0.0005)
    relaunch(sim, 5)
    sim.steps(5)
    sim.finish()
    [figure] = fault_figures(Ledger.of(sim.rows))
    assert (figure.layer, figure.recovered, figure.lost_steps, figure.attempt) == ("launcher", True, 1, 2)
    assert figure.recovery_s == near(0.0005 + 0.05 + 3.0 + 0.1)


def test_an_in_process_recovery_names_its_layer(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(5)
    sim.fault("exception")
    sim.interrupt()
    sim.open(0, layer="in_process")
    sim.steps(9)
    sim.finish()
    [figure] = fault_figures(Ledger.of(sim.rows))
    assert (figure.layer, figure.lost_steps) == ("in_process", 5)
    buckets = buckets_s(Ledger.of(sim.rows), 0.1)
    assert buckets["detection"] == near(0.05)
    assert buckets["teardown"] == near(0.2)
    assert buckets["imports"] == 0
    assert buckets["load"] == near(0.2)
    # the step that was cut off after 0.03 s, and five again
    assert buckets["replay"] == near(0.53)


def test_a_double_rollback_adds(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(24)
    sim.fault()
    relaunch(sim, 20)
    sim.steps(2)
    sim.fault()
    relaunch(sim, 10)  # the generation of step 20 turned out damaged
    sim.steps(20)
    sim.finish()
    ledger = Ledger.of(sim.rows)
    assert [figure.lost_steps for figure in fault_figures(ledger)] == [4, 12]
    assert lost_steps(attempts(ledger)) == 16
    first, second = fault_figures(ledger)
    assert first.t[6] == second.t[6]  # both had to wait for step 25


def test_a_fault_that_nobody_survives_is_not_recovered(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(10)
    sim.save()
    sim.steps(3)
    sim.fault()
    sim.detect()
    ledger = Ledger.of(sim.rows)
    [figure] = fault_figures(ledger)
    assert (figure.recovered, figure.recovery_s, figure.t[5]) == (False, None, None)
    assert useful_steps(ledger) == 10  # what was not committed is gone
    assert sum(buckets_s(ledger, 0.1).values()) == near(ledger.end - ledger.begin)


def test_a_fault_that_stops_nothing_needs_no_layer(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(4)
    sim.fault("slow_rank")
    sim.step(1.0)
    sim.steps(5)
    sim.finish()
    ledger = Ledger.of(sim.rows)
    [figure] = fault_figures(ledger)
    assert (figure.layer, figure.recovered, figure.lost_steps, figure.detect_s) == ("none", True, 0, None)
    assert buckets_s(ledger, 0.1)["slowdown"] == pytest.approx(0.93, abs=0.01)


def test_a_run_that_never_did_a_step_is_all_start_up(simulator: Simulate) -> None:
    sim = simulator()
    sim.launch()
    sim.processes()
    sim.wait(3.0)
    sim.write(Event.LAUNCH_ENDED, pod="job-0", exit_code=1)
    buckets = buckets_s(Ledger.of(sim.rows), None)
    assert buckets["init"] == near(4.5)
    assert buckets["productive"] == 0


def test_an_unrecorded_recovery_is_unknown_and_not_hidden(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(5)
    sim.fault()
    sim.wait(4.0)
    sim.processes()  # nobody wrote that it was detected or stopped
    sim.open(0)
    sim.steps(8)
    sim.finish()
    assert buckets_s(Ledger.of(sim.rows), 0.1)["unknown"] == near(4.0)


def test_saves_are_timed_by_the_slowest_rank(simulator: Simulate) -> None:
    sim = start(simulator)
    for _ in range(3):
        sim.steps(10, blocked_s=0.01)
        sim.save()
    sim.finish(drain_s=0.4)
    figures = checkpoint_figures(Ledger.of(sim.rows), T_REF)
    assert figures.saves == 3
    assert figures.bytes == 1000
    assert figures.stall_s is not None and figures.stall_s.max == near(0.004)
    assert figures.drain_s == near(0.4)
    assert figures.commit_s == near(0.05)
    assert figures.efficiency is not None and figures.efficiency < 1
    assert figures.efficiency_stall_only == pytest.approx(1 - 29 * 0.01 / (29 * 0.1 + 0.1), abs=1e-3)


def test_the_age_of_the_newest_generation_counts_from_its_launch(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(10)
    sim.save(commit_s=0.5)
    sim.steps(4)
    sim.fault(after_s=0.03)
    relaunch(sim, 10)
    sim.steps(4)
    sim.finish()
    figures = checkpoint_figures(Ledger.of(sim.rows), T_REF)
    assert figures.rpo_s == near(0.5 + 0.4 + 0.03)
    assert figures.efficiency is None  # a run with faults says nothing about saves alone


def test_the_reference_time_leaves_out_warm_up_and_evaluations(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(21, seconds=0.9)
    sim.steps(30)
    sim.evaluate(5.0)
    sim.steps(30)
    sim.finish()
    found = reference_time(Ledger.of(sim.rows))
    assert found is not None
    assert found.n == 60
    assert found.median_s == near(0.1)
    assert found.spread_s == pytest.approx(0.0, abs=1e-6)


def test_a_short_control_run_gives_no_reference(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(21)
    sim.finish()
    assert reference_time(Ledger.of(sim.rows)) is None


def test_goodput_does_not_rise_with_slow_steps(simulator: Simulate) -> None:
    def goodput(step_s: float) -> float:
        sim = start(simulator, step_s=step_s)
        sim.steps(50)
        sim.finish()
        summary = summarize(Ledger.of(sim.rows), run_info(50))
        assert summary.goodput is not None
        return summary.goodput

    assert goodput(0.2) < goodput(0.1)


def test_the_summary_has_every_field_and_comes_back_from_json(simulator: Simulate) -> None:
    sim = play(simulator, [("launcher", 12, 2, None, True)], 2, 10)
    summary = summarize(Ledger.of(sim.rows), run_info(sim.position))
    assert Summary.model_validate_json(summary.to_json()) == summary
    data = summary.model_dump(by_alias=True)
    assert list(data)[:8] == [
        "schema", "run", "world_size", "attempts", "versions", "storage", "interval_s", "wall_s",
    ]  # fmt: skip
    assert set(data["checkpoint"]) >= {"writer", "stage", "efficiency", "stall_s", "rpo_s", "skipped", "failed"}
    assert set(data["faults"][0]) >= {"id", "class", "rank", "step", "recovered", "layer", "lost_steps", "t"}
    assert set(data["buckets_s"]) == {bucket.value for bucket in Bucket}
    assert summary.reached_target and summary.all_recovered


def test_a_save_is_skipped_when_storage_does_not_get_it(simulator: Simulate) -> None:
    """Several are left out of one step: a persist, and the snapshot that was to take its place."""
    sim = start(simulator)
    for step, kind in ((10, "persist"), (10, "snapshot"), (15, "snapshot"), (20, "persist")):
        sim.write(Event.SAVE_SKIPPED, 0, step=step, kind=kind, reason="storage is busy")
    sim.write(Event.SAVE_SKIPPED, 0, step=30, reason="of an earlier version")
    sim.steps(30)
    sim.finish()
    assert checkpoint_figures(Ledger.of(sim.rows), T_REF).skipped == 3


def test_without_a_control_run_there_is_no_goodput(simulator: Simulate) -> None:
    sim = play(simulator, [], 2, 30)
    summary = summarize(Ledger.of(sim.rows), run_info(30, None))
    assert (summary.t_ref, summary.goodput, summary.buckets_s["slowdown"]) == (None, None, 0)


def test_an_empty_ledger_is_refused() -> None:
    with pytest.raises(EmptyLedgerError, match="no records"):
        summarize(Ledger.of([]), run_info(1))


def test_clocks_of_two_hosts_are_brought_together(simulator: Simulate) -> None:
    sim = start(simulator)
    sim.steps(3)
    sim.finish()
    other_boot_s = 5000.0
    for row in sim.rows:
        if row.get("rank") == 1:
            row["boot"] = "other"
            for name in ("mono_s", "start_s", "end_s", "imported_s"):
                if name in row:
                    row[name] += other_boot_s
    ledger = Ledger.of(sim.rows)
    assert ledger.end - ledger.begin == near(sim.now - 100.0)
    assert sum(buckets_s(ledger, 0.1).values()) == near(ledger.end - ledger.begin)
