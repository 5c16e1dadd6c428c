"""What the Job controller counts, lets go, announces and tells of, and what it leaves alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ops.local.kubernetes.jobs.backoff import FAILURES, IGNORED, finished_at_s, last_failed
from ops.local.kubernetes.jobs.failure_policy import verdict
from ops.local.kubernetes.jobs.indexes import INDEX, index_of
from ops.local.kubernetes.jobs.view import TRACKING
from ops.local.kubernetes.kinds import EVENT
from ops.local.kubernetes.objects import Object, finalizers_of, is_terminating, name_of, uid_of
from ops.local.kubernetes.store import ref_of
from tests.support.simulated_cluster import Scenario, about

pytestmark = pytest.mark.unit

Fields = dict[str, Any]
PER_INDEX: Fields = {
    "completionMode": "Indexed",
    "completions": 3,
    "parallelism": 3,
    "podReplacementPolicy": "Failed",
    "backoffLimitPerIndex": 6,
}
TRAINER = {"containerName": "trainer", "operator": "In"}
IGNORES_92 = {"podFailurePolicy": {"rules": [{"action": "Ignore", "onExitCodes": TRAINER | {"values": [92]}}]}}


# --- when a pod ended, and which of several counts


def _ended(*finished: str | None, index: int = 0, failures: tuple[int, int] = (0, 0)) -> Object:
    states = [{"state": {"terminated": {"finishedAt": at}} if at else {"running": {}}} for at in finished]
    notes = {INDEX: str(index), FAILURES: str(failures[0]), IGNORED: str(failures[1])}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2027-01-01T00:00:50Z"}
    status = {"phase": "Failed", "containerStatuses": states, "conditions": [ready]}
    return {"metadata": {"annotations": notes, "creationTimestamp": "2027-01-01T00:00:00Z"}, "status": status}


def test_a_pod_ends_with_its_last_container() -> None:
    both = finished_at_s(_ended("2027-01-01T00:00:10Z", "2027-01-01T00:00:20Z"))
    assert both == finished_at_s(_ended("2027-01-01T00:00:20Z"))


def test_a_pod_with_a_container_that_has_not_ended_ends_when_it_was_no_longer_ready() -> None:
    unknown = finished_at_s(_ended("2027-01-01T00:00:10Z", None))
    assert unknown == finished_at_s(_ended("2027-01-01T00:00:50Z"))


def test_of_several_failed_pods_the_one_with_the_most_failures_is_followed() -> None:
    old = _ended("2027-01-01T00:00:30Z", failures=(1, 0))
    new = _ended("2027-01-01T00:00:20Z", failures=(1, 1))
    other = _ended("2027-01-01T00:00:10Z", index=1)
    assert last_failed([old, new, other]) == last_failed([new, old, other]) == {0: new, 1: other}
    later = _ended("2027-01-01T00:00:40Z", failures=(0, 1))
    assert last_failed([old, later]) == last_failed([later, old]) == {0: later}


def test_an_init_container_may_decide() -> None:
    job = {"spec": IGNORES_92 | {"podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": _any(7)}]}}}
    pod: Object = {"metadata": {"name": "p", "namespace": "n"}, "status": {}}
    pod["status"]["initContainerStatuses"] = [{"name": "prepare", "state": {"terminated": {"exitCode": 7}}}]
    assert verdict(job, pod).message == (
        "Container prepare for pod n/p failed with exit code 7 matching FailJob rule at index 0"
    )


def _any(code: int) -> Fields:
    return {"operator": "In", "values": [code]}


# --- batches


def test_changes_that_go_on_and_on_do_not_put_a_sync_off(scenario: Scenario) -> None:
    scenario.start(PER_INDEX | {"backoffLimitPerIndex": 0, "maxFailedIndexes": 0})
    scenario.exit(0, 1)
    for number in range(12):
        busy = scenario.pods(1)[0]
        scenario.store.modify(ref_of(busy), lambda p, n=number: p["metadata"]["labels"].update(busy=str(n)))
        scenario.run(0.1)
    assert "FailureTarget" in scenario.conditions()


# --- what is let go


def _forge(scenario: Scenario, pod: Object, name: str, **metadata: Any) -> Object:
    """A pod that the controller did not make."""
    twin = copy.deepcopy(pod)
    del twin["metadata"]["uid"]
    twin["metadata"].update(name=name, **metadata)
    return scenario.store.create(twin)


def test_pods_of_a_job_that_is_gone_are_let_go(scenario: Scenario) -> None:
    scenario.start(PER_INDEX, term=(3, 143))
    scenario.delete_job("Background")
    assert scenario.jobs() == []
    scenario.run(0.2)
    assert [finalizers_of(p) for p in scenario.pods()] == [[], [], []]
    scenario.wait(lambda: scenario.pods() == [], 10)


def test_a_tracked_pod_without_an_owner_is_let_go(scenario: Scenario) -> None:
    scenario.start(PER_INDEX)
    made = _forge(scenario, scenario.pods()[0], "stray", ownerReferences=[], finalizers=[TRACKING])
    scenario.run(0.2)
    assert finalizers_of(scenario.pod(name_of(made))) == []


@pytest.mark.parametrize("code", [0, 1])
def test_a_finished_job_holds_no_pod(scenario: Scenario, code: int) -> None:
    scenario.start({"completions": 1, "parallelism": 1, "backoffLimit": 0, "podReplacementPolicy": "Failed"})
    pod = scenario.pods()[0]
    scenario.end(pod, code)
    scenario.wait_for("Failed" if code else "Complete")
    scenario.store.modify(ref_of(pod), lambda p: p["metadata"].update(finalizers=[TRACKING]))
    scenario.run(2)
    assert finalizers_of(scenario.pod(name_of(pod))) == []
    assert len(scenario.pods()) == 1


def test_a_job_that_is_being_deleted_makes_no_pods(scenario: Scenario) -> None:
    spec = {"completions": 2, "parallelism": 2, "podReplacementPolicy": "TerminatingOrFailed"}
    scenario.start(spec, term=(20, 143))
    scenario.delete_job("Foreground")
    scenario.at(15)
    assert len(scenario.pods()) == 2
    assert all(is_terminating(p) for p in scenario.pods())


def test_of_two_pods_with_one_index_the_second_goes(scenario: Scenario) -> None:
    scenario.start(PER_INDEX)
    first = scenario.pods(1)[0]
    twin = _forge(scenario, first, "twin")
    scenario.run(2)
    assert is_terminating(scenario.pod(name_of(twin)))
    assert not is_terminating(scenario.pod(name_of(first)))
    scenario.wait(lambda: len(scenario.pods(1)) == 1, 10)
    assert scenario.status("failed", "active") == (None, 3)


def test_a_pod_with_an_index_that_is_done_goes(scenario: Scenario) -> None:
    scenario.start(PER_INDEX)
    done = scenario.exit(1, 0)
    scenario.wait(lambda: scenario.status("completedIndexes") == ("1",), 10)
    twin = _forge(scenario, done, "late")
    scenario.run(2)
    assert is_terminating(scenario.pod(name_of(twin)))


# --- how many pods there are


def test_a_lost_index_is_not_tried_again_while_others_wait_for_their_turn(scenario: Scenario) -> None:
    scenario.start(PER_INDEX | {"parallelism": 1, "backoffLimitPerIndex": 0})
    scenario.exit(0, 1)
    scenario.wait(lambda: scenario.living(1), 5)
    scenario.run(30)
    assert [len(scenario.pods(i)) for i in range(3)] == [1, 1, 0]
    assert scenario.status("failedIndexes", "failed") == ("0", 1)


def test_a_work_queue_makes_no_pods_after_its_first_success(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#parallel-jobs"""
    scenario.start({"parallelism": 3, "podReplacementPolicy": "Failed"}, term=(5, 143))
    first, second, third = scenario.pods()
    scenario.end(first, 0)
    scenario.wait(lambda: scenario.status("succeeded", "active") == (1, 2), 5)
    scenario.run(5)
    assert len(scenario.pods()) == 3
    scenario.end(second, 0)
    scenario.wait(lambda: scenario.status("succeeded") == (2,), 5)
    assert scenario.conditions() == {}
    scenario.delete_pod(third)
    scenario.run(3)
    assert scenario.conditions() == {}
    scenario.wait_for("Complete", 10)
    reason = ("CompletionsReached", "Reached expected number of succeeded pods")
    assert scenario.conditions() == {"SuccessCriteriaMet": reason, "Complete": reason}


def test_a_plain_job_is_done_with_its_last_completion(scenario: Scenario) -> None:
    scenario.start({"completions": 2, "parallelism": 1, "podReplacementPolicy": "Failed"})
    scenario.end(scenario.pods()[0], 0)
    scenario.wait(lambda: scenario.status("succeeded", "ready") == (1, 1), 5)
    assert scenario.conditions() == {}
    scenario.end(scenario.pods()[1], 0)
    scenario.wait_for("Complete", 5)
    assert scenario.status("succeeded", "active", "failed") == (2, None, None)
    assert len(scenario.pods()) == 2


# --- limits of one index


def test_ignored_failures_do_not_use_up_an_index(scenario: Scenario) -> None:
    scenario.start(PER_INDEX | IGNORES_92 | {"backoffLimitPerIndex": 1})
    scenario.replacement(scenario.exit(0, 92))
    scenario.replacement(scenario.exit(0, 92))
    scenario.replacement(scenario.exit(0, 1))
    assert scenario.status("failedIndexes") == ("",)
    scenario.exit(0, 1)
    scenario.wait(lambda: scenario.status("failedIndexes") == ("0",), 5)


def test_an_ignored_failure_is_replaced_even_without_any_to_spare(scenario: Scenario) -> None:
    scenario.start(PER_INDEX | IGNORES_92 | {"backoffLimitPerIndex": 0})
    new, after_s = scenario.replacement(scenario.exit(0, 92))
    assert about(after_s, 10)
    assert scenario.status("failedIndexes", "failed") == ("", None)
    assert index_of(new) == 0


def test_a_rule_may_give_an_index_up_at_once(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy"""
    rule = {"action": "FailIndex", "onExitCodes": TRAINER | {"values": [42]}}
    scenario.start(PER_INDEX | {"podFailurePolicy": {"rules": [rule]}})
    scenario.exit(0, 42)
    scenario.wait(lambda: scenario.status("failedIndexes", "failed") == ("0", 1), 5)
    scenario.exit(1, 42)
    scenario.wait(lambda: scenario.status("failedIndexes", "failed") == ("0,1", 2), 5)
    scenario.exit(2, 0)
    scenario.wait_for("Failed")
    assert scenario.conditions()["Failed"] == ("FailedIndexes", "Job has failed indexes")
    assert scenario.status("completedIndexes", "succeeded", "completionTime") == ("2", 1, None)


# --- what a new pod is like


def test_pods_carry_their_index_by_every_name(scenario: Scenario) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode"""
    own = {"name": "JOB_COMPLETION_INDEX", "value": "mine"}
    init = {"name": "prepare", "image": "none", "command": ["true"]}
    side = {"name": "side", "image": "none", "command": ["true"], "env": [own]}
    trainer = {"name": "trainer", "image": "none", "command": ["true"]}
    scenario.start(PER_INDEX, pod={"containers": [trainer, side], "initContainers": [init]})
    pod = scenario.pods(2)[0]
    assert (pod["spec"]["hostname"], pod["metadata"]["labels"][INDEX]) == ("job-2", "2")
    assert pod["metadata"]["annotations"] == {INDEX: "2", FAILURES: "0"}
    given = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{INDEX}']"}}
    wanted = [{"name": "JOB_COMPLETION_INDEX", "valueFrom": given}]
    found = {c["name"]: c.get("env") for c in [*pod["spec"]["containers"], *pod["spec"]["initContainers"]]}
    assert found == {"trainer": wanted, "side": [own], "prepare": wanted}


# --- containers that start again


ON_FAILURE: Fields = {"completions": 2, "parallelism": 2, "podReplacementPolicy": "Failed"}


def _restarted(scenario: Scenario, pod: Object, count: int) -> None:
    def restart(p: Object) -> None:
        p["status"]["containerStatuses"][0]["restartCount"] = count

    scenario.store.modify(ref_of(pod), restart)


@pytest.mark.parametrize(("limit", "few", "enough"), [(0, [], [1]), (2, [1], [1, 1]), (2, [1, 0], [2, 0])])
def test_restarts_in_place_count_against_the_limit(
    scenario: Scenario, limit: int, few: list[int], enough: list[int]
) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy"""
    scenario.start(ON_FAILURE | {"backoffLimit": limit}, pod={"restartPolicy": "OnFailure"})
    pods = scenario.pods()
    for pod, count in zip(pods, few, strict=False):
        _restarted(scenario, pod, count)
    scenario.run(3)
    assert scenario.conditions() == {}
    for pod, count in zip(pods, enough, strict=False):
        _restarted(scenario, pod, count)
    scenario.wait_for("FailureTarget", 3)
    assert scenario.conditions()["FailureTarget"][0] == "BackoffLimitExceeded"


def test_restarts_of_a_pod_that_has_ended_well_are_forgotten(scenario: Scenario) -> None:
    scenario.start(ON_FAILURE | {"backoffLimit": 2}, pod={"restartPolicy": "OnFailure"})
    pod = scenario.pods()[0]
    scenario.end(pod, 0)
    scenario.wait(lambda: scenario.status("succeeded") == (1,), 5)
    _restarted(scenario, pod, 5)
    scenario.run(3)
    assert scenario.conditions() == {}


# --- what the Job tells


def _events(scenario: Scenario) -> list[tuple[str, str, int]]:
    job = uid_of(scenario.job())
    mine = [e for e in scenario.store.select(EVENT) if e["involvedObject"]["uid"] == job]
    return [(e["type"], e["reason"], e["count"]) for e in mine if e["reason"] != "SuccessfulCreate"]


def test_the_ends_of_a_job_are_told_once(scenario: Scenario) -> None:
    scenario.start(PER_INDEX | {"backoffLimitPerIndex": 0, "maxFailedIndexes": 0}, term=(3, 143))
    scenario.exit(0, 1)
    scenario.wait_for("Failed")
    scenario.run(30)
    assert _events(scenario) == [("Warning", "MaxFailedIndexesExceeded", 1)]


def test_a_job_tells_of_suspension_resumption_and_completion(scenario: Scenario) -> None:
    scenario.start({"completions": 1, "parallelism": 1, "podReplacementPolicy": "Failed"})
    scenario.patch(suspend=True)
    scenario.wait(lambda: scenario.pods() == [], 5)
    assert _events(scenario) == [("Normal", "Suspended", 1)]
    scenario.patch(suspend=False)
    scenario.wait(lambda: scenario.status("ready") == (1,), 5)
    assert _events(scenario) == [("Normal", "Suspended", 1), ("Normal", "Resumed", 1)]
    scenario.end(scenario.pods()[0], 0)
    scenario.wait_for("Complete")
    assert _events(scenario)[2:] == [("Normal", "Completed", 1)]
    assert scenario.status("completionTime") != (None,)
