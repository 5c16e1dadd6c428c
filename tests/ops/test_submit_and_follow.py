"""Plans, outcomes and progress, without a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ProtocolError

from environments.environment import Environment, find, load
from ops.console import Output
from ops.errors import Code, InvalidInputError
from ops.failures import explain
from ops.follow import STEP_LINE, End, follow, outcome_of
from ops.runs import LocalRuns
from ops.submit import Request, plan
from ops.tree_digest import local_image, tree_digest

pytestmark = pytest.mark.unit


@pytest.fixture(name="local", scope="module")
def _local() -> Environment:
    return load(find("local"))


def condition(kind: str, status: str = "True", message: str = "why") -> Any:
    return SimpleNamespace(type=kind, status=status, message=message, reason="Reason")


def job(*conditions: Any, suspend: bool = False, active: int | None = None, terminating: int | None = None) -> Any:
    status = SimpleNamespace(conditions=list(conditions), active=active, terminating=terminating)
    return SimpleNamespace(status=status, spec=SimpleNamespace(suspend=suspend))


@pytest.mark.parametrize(
    ("found", "end"),
    [
        (job(), None),
        (job(active=2), None),
        (job(condition("SuccessCriteriaMet"), active=1), End.REACHED),
        (job(condition("FailureTarget"), terminating=2), End.FAILED),
        (job(condition("FailureTarget", "False")), None),
        (job(condition("Failed")), End.FAILED),
        (job(suspend=True, terminating=2), None),
        (job(suspend=True, active=1), None),
        (job(condition("Suspended"), suspend=True), End.STOPPED),
        (None, End.GONE),
    ],
)
def test_a_job_is_judged_by_what_comes_before_complete_and_failed(found: Any, end: End | None) -> None:
    outcome = outcome_of(found)
    assert (outcome.end if outcome else None) == end


class Scripted:
    """A cluster that plays a Job to its end."""

    def __init__(self, *states: tuple[Any, str]) -> None:
        self._states = list(states)

    def job(self, name: str) -> Any:
        return self._states[0][0]

    def pods(self, name: str) -> list[Any]:
        return [SimpleNamespace(name="r-1-0", phase="Running", exit_code=93, reason="rank 1, step 7: broken")]

    def log(self, pod: str, *, lines: int) -> str:
        text = self._states[0][1]
        if len(self._states) > 1:
            self._states.pop(0)
        return text


def test_following_tells_steps_and_notes_and_says_why_it_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.follow.POLL_S", 0.0)
    cluster: Any = Scripted(
        (job(), ""),
        (job(), "12:00 steadfast step 10 loss 3.5000 grad 1.0"),
        (job(condition("FailureTarget", message="exit code 93")), "steadfast step 12 loss 3.4000"),
    )
    said = iter([["attempt 1 starts"], [], []])
    outcome = follow(cluster, "r-1", 20, Output(), lambda: iter(next(said)))
    assert outcome.end is End.FAILED
    assert outcome.reason == "exit code 93; r-1-0: rank 1, step 7: broken"
    printed = capsys.readouterr().out
    assert "attempt 1 starts" in printed and "step 10 of 20, loss 3.5000" in printed


def test_following_bears_with_a_server_that_is_away_for_a_moment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.follow.POLL_S", 0.0)
    answers = iter([ApiException(status=503), ProtocolError("reset"), job(condition("SuccessCriteriaMet"))])

    class Away(Scripted):
        def job(self, name: str) -> Any:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

    away: Any = Away((None, ""))
    assert follow(away, "r-1", 20, Output()).end is End.REACHED
    refusing: Any = Away((None, ""))
    answers = iter([ApiException(status=403)])
    with pytest.raises(ApiException):
        follow(refusing, "r-1", 20, Output())


def test_the_log_line_of_the_trainer_is_understood() -> None:
    line = "2026-11-29 16:00:01,000 steadfast step 40 loss 2.8950 grad 0.612 9,123 tokens/s/rank MFU 0.1 %"
    assert STEP_LINE.findall(line) == [("40", "2.8950")]
    assert STEP_LINE.findall("steadfast step 25 evaluation loss 2.9") == []


def test_a_plan_holds_everything_of_the_run(local: Environment) -> None:
    planned = plan(local, Request("first", steps=60, image=local_image(local), local=True), None)
    content = planned.run_json(None, {"image": "x"})
    assert (planned.spec.job_name, content["config"]["loop"]["steps"], content["world_size"]) == ("first-1", 60, 2)
    kinds = [manifest["kind"] for manifest in planned.manifests]
    assert kinds.count("Job") == 2 and kinds[-1] == "Job"


def test_a_resumed_run_is_the_next_submission_and_may_grow(local: Environment, tmp_path: Path) -> None:
    image, runs = local_image(local), LocalRuns(tmp_path)
    runs.write_run_json(
        "first", plan(local, Request("first", steps=60, image=image, local=True), None).run_json(None, {})
    )
    assert runs.names() == ["first"]
    again = plan(local, Request("first", steps=90, resume=True, image=image, local=True), runs.run_json("first"))
    assert (again.spec.submission, again.training.loop.steps) == (2, 90)
    with pytest.raises(InvalidInputError) as refusal:
        plan(local, Request("first", steps=50, resume=True, image=image, local=True), runs.run_json("first"))
    assert any("loop.steps" in detail for detail in refusal.value.details)


@pytest.mark.parametrize("steps", [60, 100])
def test_a_resumed_run_goes_on_to_its_own_target(local: Environment, tmp_path: Path, steps: int) -> None:
    """The file says 80: a run that began with fewer would train on beyond its end, one with more be refused."""
    image, runs = local_image(local), LocalRuns(tmp_path)
    first = Request("first", steps=steps, image=image, local=True)
    runs.write_run_json("first", plan(local, first, None).run_json(None, {}))
    again = plan(local, Request("first", resume=True, image=image, local=True), runs.run_json("first"))
    assert again.training.loop.steps == steps


def test_without_an_image_a_submission_to_aws_is_refused(local: Environment) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        plan(local, Request("first"), None)
    assert refusal.value.details == [
        "image: is not set; `steadfast image push ENV` builds and pushes it and writes it into the file"
    ]


def test_the_tree_has_another_digest_when_a_byte_changes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = tree_digest(tmp_path)
    assert tree_digest(tmp_path) == before
    (tmp_path / "a.py").write_text("x = 2\n")
    assert tree_digest(tmp_path) != before


def test_what_nobody_expected_is_called_a_bug() -> None:
    failure = explain(ZeroDivisionError("oh"))
    assert failure.code is Code.BUG and "a bug" in failure.message and failure.details


def test_errors_of_the_libraries_become_the_cloud_s() -> None:
    from botocore.exceptions import NoCredentialsError

    missing = explain(NoCredentialsError())
    assert missing.code is Code.CLOUD and missing.fix is not None and "aws sts" in missing.fix
    refused = ApiException(status=403, reason="Forbidden")
    refused.body = '{"message": "jobs.batch is forbidden"}'
    assert explain(refused).message == "Kubernetes: jobs.batch is forbidden"
    assert explain(ConnectionRefusedError("no")).code is Code.CLOUD
