"""What a trainer reads of its writer's reports, whenever it looks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint import reports
from trainer.checkpoint.reports import Outcome, Phase, clear, news, report

pytestmark = pytest.mark.unit

ORDERS = [
    [Phase.HASHED, Phase.WRITTEN, Phase.COMMITTED, Phase.DONE],
    [Phase.WRITTEN, Phase.HASHED, Phase.COMMITTED, Phase.DONE],
    [Phase.WRITTEN, Phase.COMMITTED, Phase.DONE, Phase.HASHED],
]
"""Of rank 0's writer, which has two lanes."""


@given(order=st.sampled_from(ORDERS), at=st.lists(st.integers(0, 30), min_size=4, max_size=4).map(sorted))
def test_no_report_is_missed_whenever_it_comes(order: list[Phase], at: list[int]) -> None:
    """A commit reported between two looks was missed when the end was there at the next: the save had failed."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        outcome, looked, waiting = Path(folder) / "save", 0, list(zip(at, order, strict=True))
        look = reports.poll

        def poll(path: Path, phase: Phase) -> Outcome | None:
            nonlocal looked
            looked += 1
            while waiting and waiting[0][0] < looked:
                report(path, waiting.pop(0)[1], Outcome(ok=True))
            return look(path, phase)

        patch.setattr(reports, "poll", poll)
        heard: list[Phase] = []
        while Phase.DONE not in heard:
            heard += news(outcome, heard)
            assert looked < 60
        assert sorted(heard) == sorted(order) and heard[-1] is Phase.DONE
        clear(outcome)
        assert not list(Path(folder).iterdir())
