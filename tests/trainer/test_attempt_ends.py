"""How an attempt ends when its last save does not: on stubs, without ranks."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer import files, process
from trainer.attempt import Attempt
from trainer.checkpoint import SavesFailingError
from trainer.config import TrainConfig
from trainer.exit_codes import ExitCode
from trainer.paths import RunPaths
from trainer.process import Process
from trainer.resilience import verdict
from trainer.resilience.progress import Starts

pytestmark = pytest.mark.unit

Finish = Callable[[int], bool]


def fails(_: int) -> bool:
    raise SavesFailingError("no space")


def late(_: int) -> bool:
    return False


class Stub(Attempt):
    """At its target, with an engine whose last save does as told."""

    def __init__(self, paths: RunPaths, finish: Finish, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = TrainConfig.model_validate({"loop": {"steps": 9}, "checkpoint": {"tolerate_failures": 1}})
        self.ended_job: list[str] = []
        heartbeat = SimpleNamespace(end_job=self.ended_job.append)
        monkeypatch.setattr(process, "Heartbeat", lambda _: heartbeat)
        self.process = rank = object.__new__(Process)
        rank.rank, rank.attempt, rank.stop_asked, rank._call = 0, 3, "", None
        rank.timeouts = None
        rank._verdicts = (paths.verdicts,)
        rank.context = SimpleNamespace(pod="p")
        rank.starts = Starts(paths, 1)
        self.ledger: Any = SimpleNamespace(write=lambda *_, **__: None)
        self.heartbeat: Any = SimpleNamespace(close=lambda: None)
        self.engine: Any = SimpleNamespace(finish=finish, resumes_from="step-8.3")
        self._failed_last_saves = rank.starts.failed_last_saves(9)
        self._stop_reason = "SIGTERM"
        self._record = lambda **_: None


def test_a_failed_last_save_is_tried_again_as_often_as_tolerated_then_ends_the_job(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Stub(paths, fails, monkeypatch)
    with pytest.raises(SavesFailingError):
        first.finished(9)
    assert not first.ended_job and not list(paths.verdicts.iterdir())
    second = Stub(paths, fails, monkeypatch)
    with pytest.raises(SystemExit) as leaving:
        second.finished(9)
    found = verdict.find([paths.verdicts], "p", newer_than_ns={})
    assert leaving.value.code == ExitCode.SAVES_FAIL and found and found.code is ExitCode.SAVES_FAIL
    assert second.ended_job == ["no space"], "ft_launcher would start the ranks again"


def test_a_last_save_that_is_late_is_never_the_target_reached(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub(paths, late, monkeypatch)
    with pytest.raises(SystemExit) as leaving:
        stub.finished(9)
    assert leaving.value.code == ExitCode.SAVES_FAIL and "starts from step-8.3" in stub.ended_job[0]
    assert not paths.completion.exists()


@pytest.mark.parametrize("finish", [late, fails])
def test_asked_to_stop_a_rank_stops_whatever_becomes_of_the_save(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, finish: Finish
) -> None:
    stub = Stub(paths, finish, monkeypatch)
    stub.process.stop_asked = "SIGTERM"
    for ended in (stub.finished(9), stub.stopped(9)):
        assert ended.code is ExitCode.PLANNED_STOP and "starts from step-8.3" in ended.reason
        assert ended.reason.startswith("SIGTERM")


def test_a_new_attempt_takes_back_what_older_ones_have_said(paths: RunPaths) -> None:
    verdict.leave(verdict.Verdict(ExitCode.SAVES_FAIL, "old", 0, 9, 2), [paths.verdicts], "p")
    verdict.withdraw([paths.verdicts], "p", attempt=2)
    assert verdict.find([paths.verdicts], "p", newer_than_ns={}), "its own stays"
    verdict.withdraw([paths.verdicts], "p", attempt=3)
    assert verdict.find([paths.verdicts], "p", newer_than_ns={}) is None


def test_a_verdict_left_while_an_older_one_is_taken_back_stays(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = verdict.Verdict(ExitCode.PLANNED_STOP, "SIGTERM", 0, 9, attempt=3)

    def meanwhile(path: Path) -> Path:
        monkeypatch.undo()
        verdict.leave(ours, [paths.verdicts], "q")
        return verdict.temporary_beside(path)

    verdict.leave(verdict.Verdict(ExitCode.SAVES_FAIL, "full", 0, 9, attempt=2), [paths.verdicts], "p")
    monkeypatch.setattr(verdict, "temporary_beside", meanwhile)
    verdict.withdraw([paths.verdicts], "p", attempt=3)
    assert verdict.find([paths.verdicts], "p", newer_than_ns={}) == ours
    assert [path.name for path in paths.verdicts.iterdir()] == ["job.json"]


def test_pods_with_equal_process_numbers_leave_verdicts_side_by_side(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pod counts its own, and all start alike: one would rename what the other is writing."""
    names = set()
    for host in ("run-1-0", "run-1-1"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        names.add(files.temporary_beside(paths.verdicts / "job.json"))
    assert len(names) == 2


def test_sigterm_says_how_long_the_last_save_may_take() -> None:
    for grace_s, within_s in ((300, 285), (20, 10)):
        asked: list[Any] = []
        rank = object.__new__(Process)
        rank.config = SimpleNamespace(recovery=SimpleNamespace(termination_grace_s=grace_s))
        rank.engine = SimpleNamespace(request_stop=lambda *a, _asked=asked, **k: _asked.append((a, k)))
        rank._terminated(15, None)
        assert asked == [(("SIGTERM",), {"within_s": within_s})] and rank.stop_asked
