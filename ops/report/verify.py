"""What must hold of a finished run and its summary, derived again from what lies on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from pydantic import ValidationError

from ops.report.ledger import Ledger
from ops.report.run_directory import Run
from ops.report.summary import EmptyLedgerError, Summary
from trainer.checkpoint.records import COMMIT
from trainer.events import Event, read_ledger

SUM_TOLERANCE = 1e-3
UNKNOWN_LIMIT = 1e-2
POLL_S = 0.2
PRUNED_RECORD_S = 10.0
"""How long after a deletion its record may come: rank 0 writes it when it next looks at its writer."""

LoadCheck = Callable[[Path], Sequence[object]]
"""Problems of a generation that should load, as they are printed; none when it does."""


def verify(run: Run, check_generation: LoadCheck) -> list[str]:
    """Every problem found; none for a run whose report can be believed."""
    try:
        derived = run.summary()
    except EmptyLedgerError as error:
        return [str(error)]
    return [
        *_stored_summary(run, derived),
        *_buckets(derived),
        *_steps(derived),
        *_recoveries(derived),
        *_generations(run, check_generation),
    ]


def _stored_summary(run: Run, derived: Summary) -> list[str]:
    """The summary on disk says what the ledger says."""
    path = run.paths.report / "summary.json"
    try:
        stored = Summary.model_validate_json(path.read_text())
    except FileNotFoundError:
        return []
    except (ValidationError, ValueError, OSError) as error:
        return [f"{path}: cannot be read: {str(error).splitlines()[0]}"]
    if stored == derived:
        return []
    before, after = json.loads(stored.to_json()), json.loads(derived.to_json())
    changed = sorted(name for name in after if before.get(name) != after[name])
    return [f"{path}: differs from what the ledger gives in {', '.join(changed)}; make the report again"]


def _buckets(summary: Summary) -> list[str]:
    problems = []
    total = sum(summary.buckets_s.values())
    if abs(total - summary.wall_s) > SUM_TOLERANCE * summary.wall_s:
        problems.append(f"buckets_s: sum {total:.3f} s is not wall_s {summary.wall_s:.3f} s")
    problems += [
        f"buckets_s.{name}: {value} is negative" for name, value in summary.buckets_s.items() if value < -1e-6
    ]
    if summary.buckets_s["unknown"] > UNKNOWN_LIMIT * summary.wall_s:
        problems.append(f"buckets_s.unknown: {summary.buckets_s['unknown']:.3f} s is more than 1 % of wall_s")
    return problems


def _steps(summary: Summary) -> list[str]:
    problems = []
    if summary.steps.done > summary.steps.target:
        problems.append(f"steps.done: {summary.steps.done} is beyond the target {summary.steps.target}")
    if summary.goodput is not None and summary.goodput > 1.02:  # the reference is a median, and medians scatter
        problems.append(f"goodput: {summary.goodput:.3f} is above 1")
    return problems


def _recoveries(summary: Summary) -> list[str]:
    problems = []
    for fault in summary.faults:
        passed = [time for time in fault.t if time is not None]
        if len(fault.t) != 7 or passed != sorted(passed):
            problems.append(f"faults.{fault.id}.t: {fault.t} is not t0 to t6 in order")
        if not fault.recovered:
            problems.append(f"faults.{fault.id}: not recovered")
    return problems


def _generations(run: Run, check_generation: LoadCheck) -> list[str]:
    """Every generation counted as committed is there and loads, unless the run has pruned it."""
    committed = dict.fromkeys(str(r.fields["generation"]) for r in run.ledger.of_event(Event.COMMITTED))
    pruned = _pruned(run.ledger)
    found = {name: _problems_of(run, name, check_generation) for name in committed if name not in pruned}
    suspects = {name: problems for name, problems in found.items() if problems}
    pruned_meanwhile = _pruned_meanwhile(run, suspects)
    return [problem for name, problems in suspects.items() if name not in pruned_meanwhile for problem in problems]


def _problems_of(run: Run, name: str, check_generation: LoadCheck) -> list[str]:
    path = run.paths.checkpoints / name
    if not path.is_dir():
        return [f"{path}: counted as committed, never pruned, and not there"]
    return [str(problem) for problem in check_generation(path)]


def _pruned_meanwhile(run: Run, suspects: Collection[str]) -> set[str]:
    """What a live run deleted while it was looked at. Its record follows the deletion: wait for it."""
    if not suspects:
        return set()
    live, deadline_s = not run.ledger.of_event(Event.FINAL), time.monotonic() + PRUNED_RECORD_S
    while True:
        pruned = _pruned(Ledger.of(read_ledger(run.paths.events)))
        deleted = {name for name in suspects if not (run.paths.checkpoints / name / COMMIT).exists()}
        if deleted <= pruned or not live or time.monotonic() > deadline_s:
            return pruned
        time.sleep(POLL_S)


def _pruned(ledger: Ledger) -> set[str]:
    return {str(record.fields["generation"]) for record in ledger.of_event(Event.PRUNED)}
