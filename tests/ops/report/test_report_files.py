"""The report's files, tables, verification and comparison on a run directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ops.report.compare import comparison_rows, same_result
from ops.report.rows import size
from ops.report.run_directory import NoSuchRunError, load_run, write_report
from ops.report.terminal import print_summary
from ops.report.verify import verify

pytestmark = pytest.mark.unit


def no_problems(path: Path) -> list[str]:
    return []


@pytest.fixture(name="run_root")
def _run_root(tmp_path: Path, simulator: Callable[..., Any]) -> Path:
    sim = simulator()
    sim.launch()
    sim.processes()
    sim.open(0)
    sim.steps(10)
    sim.save()
    sim.evaluate()
    sim.steps(3)
    sim.fault()
    sim.detect()
    sim.processes()
    sim.open(10)
    sim.steps(10)
    sim.save()
    sim.finish()
    root = tmp_path / "runs" / "first"
    (root / "events").mkdir(parents=True)
    lines = "".join(json.dumps(row) + "\n" for row in sim.rows)
    (root / "events" / "all.jsonl").write_text(lines + '{"event": "torn')
    for row in sim.rows:
        if row["event"] == "committed":
            (root / "checkpoints" / row["generation"]).mkdir(parents=True)
    info = {
        "run": "first",
        "config": {"loop": {"steps": 20}},
        "versions": {"torch": "2.13.0"},
        "t_ref": {"median_s": 0.1, "spread_s": 0.01, "n": 60},
    }
    (root / "run.json").write_text(json.dumps(info))
    return root


def test_the_report_is_whole_and_self_contained(run_root: Path) -> None:
    summary = write_report(load_run(run_root))
    names = {path.name for path in (run_root / "report").iterdir()}
    assert names == {"summary.json", "report.html", "loss.png", "step_time.png", "recoveries.png", "buckets.png"}
    page = (run_root / "report" / "report.html").read_text()
    assert "Target reached, every fault recovered" in page
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page.replace("http-equiv", "")
    assert json.loads((run_root / "report" / "summary.json").read_text())["goodput"] == summary.goodput


def test_the_terminal_shows_every_fault_and_the_totals(run_root: Path) -> None:
    console = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115
    print_summary(console, load_run(run_root).summary())
    text = console.export_text()
    for expected in ("sigkill", "launcher", "recovered", "20 of 20, 3 lost", "productive", "n = 60"):
        assert expected in text


def plan_faults(run_root: Path, *faults: dict[str, Any]) -> None:
    path = run_root / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "faults": list(faults)}))


STRUCK = {"id": "f1", "class": "sigkill", "rank": 1, "step": 14}


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"step": 12, "phase": "recovery"}, "no other fault struck at step 12, so there was no recovery"),
        ({"step": 14, "phase": "recovery"}, None),
        ({"step": 13, "phase": "save"}, "rank 0 began no save at step 13"),
        ({"step": 25}, "no rank came to its step; the newest step is 20"),
        ({"step": 13, "class": "node_loss"}, "nobody followed the run"),
    ],
)
def test_a_planned_fault_that_never_struck_is_named_everywhere(
    run_root: Path, fault: dict[str, Any], why: str | None
) -> None:
    plan_faults(run_root, STRUCK, {"id": "never", "class": "exception", "rank": 0, **fault})
    summary = write_report(load_run(run_root))
    [named] = summary.not_struck
    assert named.id == "never" and (named.why or "").startswith(why or "")
    assert (named.why is None) == (why is None) and "fault never (" in str(named)
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    print_summary(console, summary)
    for text in (console.export_text(), (run_root / "report" / "report.html").read_text()):
        assert "Planned faults that did not strike" in text and "never" in text
    assert verify(load_run(run_root), no_problems) == []


def test_faults_that_struck_are_not_named_as_missing(run_root: Path) -> None:
    plan_faults(run_root, STRUCK)
    summary = write_report(load_run(run_root))
    assert summary.not_struck == []
    assert "did not strike" not in (run_root / "report" / "report.html").read_text()


def test_a_good_run_verifies(run_root: Path) -> None:
    run = load_run(run_root)
    assert verify(run, no_problems) == []
    write_report(run)
    assert verify(run, no_problems) == []


def test_verification_finds_a_generation_that_is_gone_or_does_not_load(run_root: Path) -> None:
    run = load_run(run_root)
    (run_root / "checkpoints" / "step-00000010.1").rmdir()
    problems = verify(run, lambda path: [f"{path.name}: block 3 is damaged"])
    assert len(problems) == 2
    assert "step-00000010.1: counted as committed" in problems[0]
    assert problems[1] == "step-00000020.2: block 3 is damaged"


def record_pruned(run_root: Path) -> None:
    row = {
        "event": "pruned",
        "wall_s": 1_700_000_110.0,
        "mono_s": 110.0,
        "boot": "b",
        "generation": "step-00000010.1",
    }
    (run_root / "events" / "more.jsonl").write_text(json.dumps(row) + "\n")


def test_a_pruned_generation_need_not_be_there(run_root: Path) -> None:
    (run_root / "checkpoints" / "step-00000010.1").rmdir()
    record_pruned(run_root)
    assert verify(load_run(run_root), no_problems) == []


def test_a_generation_that_a_live_run_prunes_under_the_check_is_not_damaged(
    run_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = run_root / "events" / "all.jsonl"
    events.write_text("".join(line for line in events.read_text().splitlines(True) if '"final"' not in line))
    records = iter([lambda: None, lambda: record_pruned(run_root)])  # not at once: rank 0 is in a step
    monkeypatch.setattr("time.sleep", lambda _: next(records)())

    def prune(path: Path) -> list[str]:
        if path.name != "step-00000010.1":
            return []
        path.rmdir()
        return [f"{path}/commit.json: No such file or directory"]

    assert verify(load_run(run_root), prune) == []


def test_a_generation_of_a_live_run_that_went_without_a_record_is_named(
    run_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.report.verify.PRUNED_RECORD_S", 0.0)
    events = run_root / "events" / "all.jsonl"
    events.write_text("".join(line for line in events.read_text().splitlines(True) if '"final"' not in line))
    (run_root / "checkpoints" / "step-00000010.1").rmdir()
    [problem] = verify(load_run(run_root), no_problems)
    assert "step-00000010.1: counted as committed" in problem


def test_verification_finds_a_summary_that_was_changed(run_root: Path) -> None:
    run = load_run(run_root)
    write_report(run)
    path = run_root / "report" / "summary.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "goodput": 0.99}))
    [problem] = verify(run, no_problems)
    assert "differs from what the ledger gives in goodput" in problem


@pytest.mark.parametrize("content", [None, "{", "[]", '{"run": "x"}', '{"run": "x", "config": {"loop": {}}}'])
def test_what_is_no_run_is_named(run_root: Path, content: str | None) -> None:
    path = run_root / "run.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(NoSuchRunError, match=r"run\.json"):
        load_run(run_root)


def test_comparison_shows_runs_side_by_side(run_root: Path) -> None:
    summary = load_run(run_root).summary()
    other = summary.model_copy(update={"run": "second", "params_sha256": "b" * 64})
    rows = {row[0]: row[1:] for row in comparison_rows([summary, other])}
    assert rows["steps"] == ("20 of 20", "20 of 20")
    assert rows["parameters, sha256"] == ("a" * 16, "b" * 16)
    assert same_result([summary, summary]) and not same_result([summary, other])
    assert not same_result([summary.model_copy(update={"params_sha256": None})] * 2)


def test_sizes_are_readable() -> None:
    assert [size(n) for n in (None, 12, 3_400_000, 17_300_000_000)] == ["-", "12 B", "3.4 MB", "17.3 GB"]
