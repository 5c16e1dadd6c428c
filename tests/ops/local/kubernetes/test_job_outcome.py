"""How Jobs end: success policy, failure policy, lost indexes, deadlines; as recorded from a real controller."""

from __future__ import annotations

from typing import Any

import pytest

from ops.local.kubernetes.objects import is_terminating, name_of, seconds
from tests.support.simulated_cluster import Scenario, about

pytestmark = pytest.mark.unit

Spec = dict[str, Any]


@pytest.fixture
def base() -> Spec:
    """The Job that training uses, with two of three successes enough."""
    trainer = {"containerName": "trainer", "operator": "In"}
    return {
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
        "successPolicy": {"rules": [{"succeededCount": 2}]},
        "podReplacementPolicy": "Failed",
        "backoffLimitPerIndex": 6,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": trainer | {"values": [90, 93]}},
                {"action": "Ignore", "onExitCodes": trainer | {"values": [92]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
    }


def _terminating(scenario: Scenario) -> set[str]:
    marks = {p["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for p in _ending(scenario)}
    return set(marks)


def _ending(scenario: Scenario) -> list[dict[str, Any]]:
    return [p for p in scenario.pods() if is_terminating(p) and p["status"]["phase"] == "Running"]


def test_failjob_93(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy"""
    scenario.start(base, term=(5, 143))
    pod = scenario.exit(0, 93)
    scenario.wait_for("FailureTarget")
    message = (
        f"Container trainer for pod {scenario.namespace}/{name_of(pod)} failed with exit code 93 "
        "matching FailJob rule at index 0"
    )
    assert scenario.conditions() == {"FailureTarget": ("PodFailurePolicy", message)}
    assert _terminating(scenario) == {"1", "2"}
    assert all(p["metadata"]["deletionGracePeriodSeconds"] == 60 for p in _ending(scenario))
    assert scenario.status("failed", "terminating", "active") == (3, 2, None)
    scenario.wait_for("Failed")
    assert about(scenario.condition_at("Failed"), 7)
    assert scenario.conditions()["Failed"] == ("PodFailurePolicy", message)
    assert scenario.status("failed", "terminating", "succeeded") == (3, 0, None)


def test_failjob_93_with_a_stuck_pod(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup

    FailureTarget comes at once, Failed only when the last pod is gone.
    """
    scenario.start(base, term="never")
    scenario.exit(0, 93)
    scenario.wait_for("FailureTarget")
    scenario.at(20)
    assert "Failed" not in scenario.conditions()
    assert scenario.status("terminating") == (2,)
    for pod in _ending(scenario):
        scenario.delete_pod(pod, 0)
    scenario.wait_for("Failed")


def test_success_third_running(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy"""
    scenario.start(base, term=(4, 93))
    scenario.exit(0, 0)
    scenario.at(3)
    scenario.exit(1, 0)
    scenario.wait_for("SuccessCriteriaMet")
    reason = ("SuccessPolicy", "Matched rules at index 0")
    assert scenario.conditions() == {"SuccessCriteriaMet": reason}
    assert _terminating(scenario) == {"2"}
    assert scenario.status("active", "succeeded") == (None, 2)
    scenario.wait_for("Complete")
    assert scenario.conditions() == {"SuccessCriteriaMet": reason, "Complete": reason}
    assert scenario.status("succeeded", "completedIndexes", "failed") == (2, "0,1", None)
    assert scenario.status("completionTime") != (None,)


def test_a_success_stands_whatever_the_last_pods_say(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy"""
    scenario.start(base | {"activeDeadlineSeconds": 20}, term=(4, 93))
    scenario.linger_s = 5
    scenario.exit(0, 0)
    scenario.exit(1, 0)
    scenario.wait_for("Complete")
    scenario.at(30)
    assert set(scenario.conditions()) == {"SuccessCriteriaMet", "Complete"}


def test_a_success_stands_beyond_the_deadline(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-termination-and-cleanup"""
    scenario.start(base | {"activeDeadlineSeconds": 20}, term="never")
    scenario.exit(0, 0)
    scenario.exit(1, 0)
    scenario.at(30)
    assert set(scenario.conditions()) == {"SuccessCriteriaMet"}


@pytest.mark.parametrize(
    ("rules", "ends", "met"),
    [
        ([{"succeededIndexes": "0,2"}], [0, 1], None),
        ([{"succeededIndexes": "0,2"}], [0, 2], 0),
        ([{"succeededIndexes": "0-2", "succeededCount": 1}], [1], 0),
        ([{"succeededIndexes": "0", "succeededCount": 1}], [1, 2], None),
        ([{"succeededIndexes": "0"}, {"succeededCount": 2}], [1, 2], 1),
        ([{"succeededCount": 0}], [], None),
        ([{"succeededCount": 0}], [1], 0),
    ],
)
def test_the_first_rule_that_is_met_decides(
    scenario: Scenario, base: Spec, rules: list[Spec], ends: list[int], met: int | None
) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy"""
    scenario.start(base | {"successPolicy": {"rules": rules}}, term="never")
    for index in ends:
        scenario.exit(index, 0)
    scenario.run(3)
    wanted = {} if met is None else {"SuccessCriteriaMet": ("SuccessPolicy", f"Matched rules at index {met}")}
    assert scenario.conditions() == wanted


def test_success_but_spare_index_exhausted(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index

    A spare that is used up for good fails a Job that has all the successes it needs.
    """
    scenario.start(base | {"backoffLimitPerIndex": 0})
    scenario.exit(2, 1)
    scenario.wait(lambda: scenario.status("failedIndexes") == ("2",), 10)
    scenario.exit(0, 0)
    scenario.wait(lambda: scenario.status("succeeded") == (1,), 10)
    scenario.exit(1, 0)
    scenario.wait_for("Failed")
    reason = ("FailedIndexes", "Job has failed indexes")
    assert scenario.conditions() == {"FailureTarget": reason, "Failed": reason}
    found = scenario.status("succeeded", "completedIndexes", "failedIndexes", "failed")
    assert found == (2, "0,1", "2", 1)


def test_success_with_an_unexhausted_spare(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#success-policy"""
    scenario.start(base | {"backoffLimitPerIndex": 1})
    scenario.exit(2, 1)
    scenario.exit(0, 0)
    scenario.at(3)
    scenario.exit(1, 0)
    scenario.wait_for("Complete")
    assert set(scenario.conditions()) == {"SuccessCriteriaMet", "Complete"}
    assert scenario.status("succeeded", "failed", "failedIndexes") == (2, 1, "")


def test_max_failed_indexes_0(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#backoff-limit-per-index"""
    scenario.start(base | {"backoffLimitPerIndex": 0, "maxFailedIndexes": 0})
    scenario.exit(0, 1)
    scenario.wait_for("Failed")
    reason = ("MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes")
    assert scenario.conditions() == {"FailureTarget": reason, "Failed": reason}
    assert scenario.status("failed", "failedIndexes") == (3, "0")


def test_early_exit_0_completes_the_index_for_good(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode"""
    scenario.start(base)
    scenario.exit(0, 0)
    scenario.wait(lambda: scenario.status("completedIndexes", "active") == ("0", 2), 10)
    scenario.at(15)
    assert len(scenario.pods(0)) == 1


def test_deadline_then_stuck_pods_and_no_time_to_live(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/ttlafterfinished/"""
    scenario.start(base | {"activeDeadlineSeconds": 10, "ttlSecondsAfterFinished": 2}, term="never")
    scenario.wait_for("FailureTarget")
    reason = ("DeadlineExceeded", "Job was active longer than specified deadline")
    assert scenario.conditions() == {"FailureTarget": reason}
    start_s = seconds(scenario.status("startTime")[0]) - scenario.started_s
    assert about(scenario.condition_at("FailureTarget") - start_s, 10)
    scenario.at(50)
    assert "Failed" not in scenario.conditions()
    assert scenario.status("failed") == (3,)


def test_time_to_live_deletes_the_job_and_its_pods(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/ttlafterfinished/"""
    scenario.start(base | {"ttlSecondsAfterFinished": 5})
    for index in range(2):
        scenario.exit(index, 0)
    scenario.wait_for("Complete")
    complete_s = scenario.condition_at("Complete")
    scenario.wait(lambda: not scenario.jobs(), 20)
    assert about(scenario.now_s - scenario.started_s - complete_s, 5)
    assert scenario.pods() == []


def test_scaling_down_removes_the_highest_index_uncounted(scenario: Scenario, base: Spec) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#elastic-indexed-jobs"""
    scenario.start(base)
    scenario.patch(parallelism=2)
    scenario.wait(lambda: [p for p in scenario.pods() if not is_terminating(p)] and not scenario.living(2), 10)
    scenario.wait(lambda: len(scenario.pods()) == 2, 20)
    assert scenario.status("failed", "active") == (None, 2)
    scenario.patch(parallelism=3)
    scenario.wait(lambda: scenario.living(2), 10)
    annotations = scenario.living(2)["metadata"]["annotations"]
    assert annotations["batch.kubernetes.io/job-index-failure-count"] == "0"


@pytest.mark.parametrize(("policy", "at_s"), [("Failed", 30), ("TerminatingOrFailed", 10)])
def test_a_plain_job_replaces_a_terminating_pod_as_its_policy_says(
    scenario: Scenario, policy: str, at_s: float
) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-replacement-policy"""
    scenario.start({"completions": 1, "parallelism": 1, "podReplacementPolicy": policy}, term=(20, 143))
    pod = scenario.pods()[0]
    scenario.delete_pod(pod)
    scenario.wait(lambda: [p for p in scenario.pods() if name_of(p) != name_of(pod)], 60)
    assert about(scenario.now_s - scenario.started_s, at_s)
    assert scenario.status("failed") == (1,)
