"""Suspending, resuming and deleting Jobs, as recorded from a real controller."""

from __future__ import annotations

from typing import Any

import pytest

from ops.local.kubernetes.errors import ApiError
from ops.local.kubernetes.jobs.backoff import FAILURES
from ops.local.kubernetes.objects import annotations_of, finalizers_of, name_of, seconds
from tests.support.simulated_cluster import Scenario, about, created_s

pytestmark = pytest.mark.unit

BASE: dict[str, Any] = {
    "completionMode": "Indexed",
    "completions": 3,
    "parallelism": 3,
    "successPolicy": {"rules": [{"succeededCount": 2}]},
    "podReplacementPolicy": "Failed",
    "backoffLimitPerIndex": 6,
    "podFailurePolicy": {
        "rules": [
            {
                "action": "Ignore",
                "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [92]},
            }
        ]
    },
}

FAILING = BASE | {
    "podFailurePolicy": {
        "rules": [
            {"action": "FailJob", "onExitCodes": {"containerName": "trainer", "operator": "In", "values": [93]}}
        ]
    }
}
VERSIONS = [("1.34", True), ("1.35", True), ("1.36", False)]
BOTH_SIDES = pytest.mark.parametrize(("scenario", "before_1_36"), VERSIONS, indirect=["scenario"])
BEFORE_1_36 = pytest.mark.parametrize("scenario", ["1.34", "1.35"], indirect=True)


def _resumed_at(scenario: Scenario) -> float:
    return min(created_s(p) for p in scenario.pods()) - scenario.started_s


@BOTH_SIDES
@pytest.mark.parametrize("code", [0, 1, 92, 143])
def test_suspend_exit_codes_not_counted(scenario: Scenario, before_1_36: bool, code: int) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job"""
    scenario.start(BASE, term=(4, code))
    first = scenario.status("startTime")[0]
    assert first
    scenario.patch(suspend=True)
    scenario.wait_for("Suspended")
    assert scenario.conditions() == {"Suspended": ("JobSuspended", "Job suspended")}
    assert scenario.status("active", "terminating", "startTime") == (None, 3, first if before_1_36 else None)
    assert all(not finalizers_of(p) for p in scenario.pods())
    scenario.wait(lambda: scenario.pods() == [], 20)
    scenario.at(12)
    assert scenario.status("startTime") == (first if before_1_36 else None,)
    scenario.patch(suspend=False)
    scenario.wait(lambda: scenario.status("ready") == (3,), 20)
    assert about(_resumed_at(scenario), 12)
    suspended = next(c for c in scenario.job()["status"]["conditions"] if c["type"] == "Suspended")
    assert (suspended["status"], suspended["reason"]) == ("False", "JobResumed")
    assert {annotations_of(p)[FAILURES] for p in scenario.pods()} == {"0"}
    assert scenario.status("succeeded", "failed", "completedIndexes") == (None, None, None)
    restarted_s = seconds(scenario.status("startTime")[0])
    assert about((restarted_s - scenario.started_s), 12)


def test_suspend_resume_before_pods_are_gone(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy"""
    scenario.start(BASE, term=(20, 143))
    old = {name_of(p) for p in scenario.pods()}
    scenario.patch(suspend=True)
    scenario.at(3)
    scenario.patch(suspend=False)
    scenario.at(12)
    assert {name_of(p) for p in scenario.pods()} == old
    assert scenario.status("active", "terminating") == (None, 3)
    scenario.wait(lambda: scenario.status("ready") == (3,), 40)
    assert about(_resumed_at(scenario), 21)


def test_suspend_keeps_completed_index(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job"""
    scenario.start(BASE)
    scenario.exit(1, 0)
    scenario.wait(lambda: scenario.status("completedIndexes") == ("1",), 10)
    scenario.patch(suspend=True)
    scenario.wait(lambda: len(scenario.pods()) == 1, 20)
    scenario.patch(suspend=False)
    scenario.wait(lambda: scenario.status("ready") == (2,), 20)
    assert [len(scenario.pods(i)) for i in range(3)] == [1, 1, 1]
    assert scenario.status("succeeded", "completedIndexes") == (1, "1")
    scenario.exit(0, 0)
    scenario.wait_for("Complete")


DEADLINE = ("DeadlineExceeded", "Job was active longer than specified deadline")


@pytest.mark.parametrize("scenario", ["1.36"], indirect=True)
def test_deadline_and_suspend(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup

    From 1.36 on a resumed Job has its whole budget again.
    """
    scenario.start(BASE | {"activeDeadlineSeconds": 20})
    scenario.at(2)
    scenario.patch(suspend=True)
    scenario.at(27)
    scenario.patch(suspend=False)
    scenario.wait(lambda: scenario.status("ready") == (3,), 5)
    assert about(_resumed_at(scenario), 27)
    assert "FailureTarget" not in scenario.conditions()
    scenario.wait_for("FailureTarget")
    assert scenario.conditions()["FailureTarget"] == DEADLINE
    assert about(scenario.condition_at("FailureTarget"), 47)


@BEFORE_1_36
def test_deadline_and_suspend_with_the_gates_of_1_34(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup

    The time of the suspension counts: a Job that was away for longer than its budget fails when it is resumed.
    """
    scenario.start(BASE | {"activeDeadlineSeconds": 20})
    scenario.at(2)
    scenario.patch(suspend=True)
    scenario.at(26.9)
    assert set(scenario.conditions()) == {"Suspended"}
    scenario.patch(suspend=False)
    scenario.wait_for("Failed", 2)
    suspended = ("JobSuspended", "Job suspended")  # an end leaves it as it was
    assert scenario.conditions() == {"Suspended": suspended, "FailureTarget": DEADLINE, "Failed": DEADLINE}
    assert about(scenario.condition_at("FailureTarget"), 27)
    assert about(scenario.condition_at("Failed"), 27)
    assert scenario.pods() == []


@BEFORE_1_36
def test_a_pause_shorter_than_the_deadline_gives_the_whole_budget_again(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job"""
    scenario.start(BASE | {"activeDeadlineSeconds": 20})
    scenario.at(2)
    scenario.patch(suspend=True)
    scenario.at(16)
    scenario.patch(suspend=False)
    scenario.wait_for("FailureTarget")
    assert about(scenario.condition_at("FailureTarget"), 36)


@BOTH_SIDES
def test_a_success_that_is_met_is_not_suspended(scenario: Scenario, before_1_36: bool) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy"""
    scenario.start(BASE, term=(10, 143))
    for index in range(2):
        scenario.exit(index, 0)
    scenario.wait_for("SuccessCriteriaMet")
    scenario.patch(suspend=True)
    scenario.run(1)
    assert set(scenario.conditions()) == {"SuccessCriteriaMet"}
    scenario.wait_for("Complete", 20)


def _suspend_with_93(scenario: Scenario, linger_s: float) -> None:
    """Suspends; the pods end with 93 after a second, and their objects stay for a while."""
    scenario.start(FAILING, term=(1, 93))
    scenario.linger_s = linger_s
    scenario.patch(suspend=True)
    scenario.wait(lambda: scenario.pods() == [], 10)


@BOTH_SIDES
def test_exit_93_of_a_pod_that_goes_at_once_is_lost_in_a_suspension(scenario: Scenario, before_1_36: bool) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#suspending-a-job"""
    _suspend_with_93(scenario, 0)
    scenario.at(12)
    assert set(scenario.conditions()) == {"Suspended"}
    scenario.patch(suspend=False)
    scenario.wait(lambda: scenario.status("ready") == (3,), 20)
    assert about(_resumed_at(scenario), 12)


@BOTH_SIDES
def test_exit_93_of_a_pod_that_lingers_fails_a_suspended_job(scenario: Scenario, before_1_36: bool) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy

    Without a startTime the API takes no Failed: from 1.36 on it waits until the Job is resumed.
    """
    _suspend_with_93(scenario, 4)
    assert scenario.conditions()["FailureTarget"][0] == "PodFailurePolicy"
    scenario.at(12)
    assert ("Failed" in scenario.conditions()) == before_1_36
    scenario.patch(suspend=False)
    scenario.run(0.2)
    assert scenario.conditions()["Failed"] == scenario.conditions()["FailureTarget"]
    assert about(scenario.condition_at("Failed"), 2 if before_1_36 else 12)
    assert scenario.pods() == []


def _refusal(scenario: Scenario, **pod: Any) -> str:
    with pytest.raises(ApiError) as refused:
        scenario.patch(template={"spec": pod})
    assert refused.value.code == 422
    return refused.value.message


ROOM = [{"name": "trainer", "image": "none", "command": ["true"], "resources": {"limits": {"cpu": "2"}}}]
LINUX = {"kubernetes.io/os": "linux"}


@pytest.mark.parametrize("scenario", ["1.36"], indirect=True)
def test_a_suspended_job_takes_directives_and_resources_though_it_has_run(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#mutable-scheduling-directives-for-suspended-jobs"""
    scenario.start(BASE, term=(20, 143))
    scenario.patch(suspend=True)
    scenario.run(0.2)
    assert scenario.status("terminating") == (3,)
    scenario.patch(template={"spec": {"nodeSelector": LINUX, "containers": ROOM}})
    spec = scenario.job()["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == LINUX
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "2"}
    assert "spec.template.spec: Invalid value" in _refusal(scenario, terminationGracePeriodSeconds=1)


@BEFORE_1_36
def test_a_suspended_job_that_has_run_takes_no_change(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#mutable-scheduling-directives-for-suspended-jobs"""
    scenario.start(BASE)
    scenario.patch(suspend=True)
    scenario.wait(lambda: scenario.pods() == [], 20)
    for change in ({"nodeSelector": LINUX}, {"containers": ROOM}):
        assert "spec.template: Invalid value" in _refusal(scenario, **change)


@BEFORE_1_36
def test_a_job_that_never_ran_takes_directives_but_no_resources(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#mutable-scheduling-directives-for-suspended-jobs"""
    scenario.create(BASE | {"suspend": True})
    scenario.run(1)
    scenario.patch(template={"spec": {"nodeSelector": LINUX}})
    assert "spec.template.spec: Invalid value" in _refusal(scenario, containers=ROOM)


@BOTH_SIDES
def test_a_running_job_takes_no_change_of_its_template(scenario: Scenario, before_1_36: bool) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#mutable-scheduling-directives-for-suspended-jobs"""
    scenario.start(BASE)
    assert "spec.template: Invalid value" in _refusal(scenario, nodeSelector=LINUX)
    scenario.patch(suspend=True)
    scenario.wait(lambda: scenario.pods() == [], 20)
    scenario.patch(suspend=False)
    assert "spec.template: Invalid value" in _refusal(scenario, nodeSelector=LINUX)


def test_suspended_template_takes_a_new_node_selector_and_nothing_else(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#mutable-scheduling-directives-for-suspended-jobs"""
    scenario.create(BASE | {"suspend": True})
    scenario.patch(template={"spec": {"nodeSelector": {"kubernetes.io/os": "linux"}}})
    with pytest.raises(ApiError) as refused:
        scenario.patch(template={"spec": {"terminationGracePeriodSeconds": 1}})
    assert refused.value.code == 422
    assert "field is immutable" in refused.value.message
    scenario.run(5)
    assert scenario.pods() == []


def test_delete_without_propagation_orphans(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/architecture/garbage-collection/#orphaned-dependents"""
    scenario.start(BASE)
    old = {name_of(p) for p in scenario.pods()}
    scenario.delete_job()
    scenario.wait(lambda: all(not finalizers_of(p) for p in scenario.pods()), 10)
    scenario.create(BASE)
    scenario.wait(lambda: scenario.status("ready") == (3,), 20)
    pods = scenario.pods()
    assert {name_of(p) for p in pods if not p["metadata"].get("ownerReferences")} == old
    assert len(pods) == 6
    assert all(p["status"]["phase"] == "Running" for p in pods)


def test_delete_in_the_foreground_waits_for_the_pods(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/architecture/garbage-collection/#foreground-deletion"""
    scenario.start(BASE, term=(10, 143))
    scenario.delete_job("Foreground")
    scenario.at(4)
    assert finalizers_of(scenario.job()) == ["foregroundDeletion"]
    with pytest.raises(ApiError) as taken:
        scenario.create(BASE)
    assert taken.value.code == 409
    assert taken.value.message == 'object is being deleted: jobs.batch "job" already exists'
    scenario.wait(lambda: not scenario.jobs(), 30)
    assert scenario.pods() == []


def test_delete_in_the_background_lets_a_new_job_start_at_once(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/architecture/garbage-collection/#background-deletion"""
    scenario.start(BASE, term=(20, 143))
    scenario.delete_job("Background")
    scenario.create(BASE)
    scenario.wait(lambda: scenario.status("ready") == (3,), 15)
    assert len(scenario.pods()) == 6
