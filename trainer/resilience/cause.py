"""What ended a submission's newest attempt, in words, from the ledger.

A rank that raises writes so itself. One that is killed leaves only its launcher's word, and that comes after the
errors which its peers have for its sake.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.events import Event, read_ledger
from trainer.paths import RunPaths

Record = Mapping[str, Any]

_STARTS = (Event.PROCESS_STARTED, Event.ATTEMPT_OPENED)
_OF_PEERS = ("RuntimeError", "Dist", "RankShouldRestart", "TimeoutError")
"""Errors that a rank may have because another is gone."""


def last_error(paths: RunPaths, submission: int) -> str:
    """Step, rank and words of the first error of the submission's newest attempt, the others follow from it; or
    of the rank that was killed."""
    records = [record for record in read_ledger(paths.events) if record.get("submission") == submission]
    records.sort(key=_when)
    raised, killed = _first_raised(records), _first_killed(records)
    if killed and not (raised and _explains(records, raised, killed)):
        return _of_killed(records, killed)
    return _of_raised(raised) if raised else "none was written"


def _explains(records: Sequence[Record], raised: Record, killed: Record) -> bool:
    """Whether the death is of an earlier start, or only followed from an error: of the same rank, or one that no
    peer's death brings about."""
    if _began_between(records, killed, raised):
        return True
    if _began_between(records, raised, killed):
        return False
    own = _rank_of(records, killed) == raised["rank"]
    return own or not str(raised["detail"]).startswith(_OF_PEERS)


def _when(record: Record) -> float:
    return float(record["wall_s"])


def _first_raised(records: Sequence[Record]) -> Record | None:
    """Of the newest attempt, or of the newest start where no attempt was opened."""
    errors = [r for r in records if r.get("event") == Event.INTERRUPTED and r.get("step") is not None]
    if not errors:
        return None
    word = "start" if errors[-1].get("attempt") is None else "attempt"
    return next(record for record in errors if record.get(word) == errors[-1].get(word))


def _first_killed(records: Sequence[Record]) -> Record | None:
    """Since the newest start before the newest of such deaths."""
    killed = [r for r in records if r.get("event") == Event.RANK_KILLED]
    if not killed:
        return None
    return next(record for record in killed if not _began_between(records, record, killed[-1]))


def _began_between(records: Sequence[Record], earlier: Record, later: Record) -> bool:
    """Whether ranks have begun anew between the two."""
    return any(_when(earlier) < _when(r) <= _when(later) for r in records if r.get("event") in _STARTS)


def _of_raised(record: Record) -> str:
    return f"step {record['step']}, rank {record['rank']}: {record['detail']}"


def _of_killed(records: Sequence[Record], death: Record) -> str:
    name, rank = _name_of(death["signal"]), _rank_of(records, death)
    if rank is None:
        return f"a rank of pod {death.get('pod')} was killed by {name} before it could write anything"
    done = [
        int(record["step"])
        for record in _of_its_pod(records, death)
        if record.get("rank") == rank and record.get("event") in (Event.STEP, Event.RESTORED)
    ]
    return f"step {(done[-1] if done else 0) + 1}, rank {rank}: killed by {name}"


def _name_of(number: int) -> str:
    """Not every signal has one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _rank_of(records: Sequence[Record], death: Record) -> int | None:
    """Which rank that place in the pod had."""
    ranks = [
        int(r["rank"])
        for r in _of_its_pod(records, death)
        if r.get("event") == Event.PROCESS_STARTED and r.get("local_rank") == death["local_rank"]
    ]
    return ranks[-1] if ranks else None


def _of_its_pod(records: Sequence[Record], death: Record) -> list[Record]:
    return [r for r in records if r.get("pod") == death.get("pod") and _when(r) <= _when(death)]
