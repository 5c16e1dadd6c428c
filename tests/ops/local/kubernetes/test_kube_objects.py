"""Pure parts: patches, selectors, quantities, indexes, taints, the store."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.local.kubernetes.errors import ApiError
from ops.local.kubernetes.jobs import indexes
from ops.local.kubernetes.jobs.backoff import GlobalRecord, delay_s
from ops.local.kubernetes.jobs.failure_policy import verdict
from ops.local.kubernetes.kinds import CONFIG_MAP, POD
from ops.local.kubernetes.objects import matches_selector, tolerates
from ops.local.kubernetes.patch import apply_patch
from ops.local.kubernetes.quantities import lacking, parse_quantity, pod_requests, remaining
from ops.local.kubernetes.selectors import Selection
from ops.local.kubernetes.store import Ref, Store

pytestmark = pytest.mark.unit

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@given(st.sets(st.integers(0, 40)))
def test_indexes_survive_their_text_form(numbers: set[int]) -> None:
    assert indexes.parse(indexes.render(numbers)) == numbers


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([2], "2"), ([0, 1], "0,1"), ([0, 1, 2], "0-2"), ([0, 2, 3, 4, 7], "0,2-4,7")]
)
def test_indexes_are_written_as_kubernetes_writes_them(numbers: list[int], text: str) -> None:
    assert indexes.render(numbers) == text


def test_backoff_doubles_up_to_ten_minutes() -> None:
    assert [delay_s(n) for n in range(9)] == [0, 10, 20, 40, 80, 160, 320, 600, 600]


def test_global_record_starts_again_after_a_success() -> None:
    def pod(phase: str, at: str) -> dict[str, Any]:
        ended = {"state": {"terminated": {"finishedAt": f"2026-01-01T00:00:{at}Z"}}}
        return {"metadata": {}, "status": {"phase": phase, "containerStatuses": [ended]}}

    record = GlobalRecord()
    record.note([pod("Failed", "02"), pod("Failed", "01")])
    assert record.failures == 2
    record.note([pod("Failed", "05"), pod("Succeeded", "04")])
    assert record.failures == 1
    assert record.ready_at_s(1.0) - record.last_failure_s == 10


def _failed_pod(**codes: int) -> dict[str, Any]:
    ended = [{"name": n, "state": {"terminated": {"exitCode": c}}} for n, c in codes.items()]
    condition = {"type": "DisruptionTarget", "status": "True"}
    status = {"phase": "Failed", "containerStatuses": ended, "conditions": [condition]}
    return {"metadata": {"name": "p", "namespace": "n"}, "status": status}


@pytest.mark.parametrize(
    ("on", "codes", "action"),
    [
        ({"containerName": "trainer", "operator": "In", "values": [93]}, {"trainer": 93, "side": 0}, "FailJob"),
        ({"containerName": "trainer", "operator": "In", "values": [93]}, {"trainer": 1, "side": 93}, "Ignore"),
        ({"operator": "In", "values": [93]}, {"trainer": 1, "side": 93}, "FailJob"),
        ({"operator": "NotIn", "values": [1]}, {"trainer": 1, "side": 0}, "Ignore"),
        ({"operator": "NotIn", "values": [1]}, {"trainer": 2, "side": 0}, "FailJob"),
    ],
)
def test_the_first_rule_that_matches_decides(on: dict[str, Any], codes: dict[str, int], action: str) -> None:
    rules = [
        {"action": "FailJob", "onExitCodes": on},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
    job = {"spec": {"podFailurePolicy": {"rules": rules}}}
    assert verdict(job, _failed_pod(**codes)).action == action
    assert verdict({"spec": {}}, _failed_pod(**codes)).action == "Count"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", "0.5"), ("64Mi", 64 << 20), ("1.5Gi", 3 << 29), ("2k", 2000), ("1e3", 1000), (4, 4)],
)
def test_quantities(text: str, value: Any) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Gb", "--1"])
def test_a_quantity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)


def test_requests_default_to_limits_and_init_containers_count_by_their_largest() -> None:
    pod = {
        "spec": {
            "containers": [
                {"resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "1"}, "requests": {"cpu": "500m"}}},
                {"resources": {"requests": {"cpu": "1"}}},
            ],
            "initContainers": [{"resources": {"requests": {"cpu": "4"}}}],
        }
    }
    assert pod_requests(pod) == {"pods": 1, "cpu": 4, "nvidia.com/gpu": 1}
    left = remaining({"cpu": "6", "nvidia.com/gpu": "1"}, [pod])
    assert lacking(left, pod_requests(pod)) == ["cpu", "nvidia.com/gpu"]


def test_merge_patch_replaces_lists_and_removes_by_null() -> None:
    old = {"a": {"b": 1, "c": 2}, "l": [1, 2]}
    assert apply_patch(old, {"a": {"b": None, "d": 3}, "l": [9]}, MERGE) == {"a": {"c": 2, "d": 3}, "l": [9]}


def test_strategic_merge_joins_lists_by_their_key() -> None:
    old = {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}]}
    patch = {
        "$setElementOrder/containers": [{"name": "a"}, {"name": "c"}],
        "containers": [
            {"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]},
            {"name": "b", "$patch": "delete"},
            {"name": "c"},
        ],
    }
    env = [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    assert apply_patch(old, patch, STRATEGIC) == {
        "containers": [{"name": "a", "image": "2", "env": env}, {"name": "c"}]
    }


def test_strategic_merge_of_lists_without_a_key_replaces_them() -> None:
    old = {"args": ["a"], "finalizers": ["x"], "taints": [{"key": "a", "effect": "NoExecute"}]}
    patch = {"args": ["b"], "finalizers": ["y"], "taints": []}
    assert apply_patch(old, patch, STRATEGIC) == {"args": ["b"], "finalizers": ["x", "y"], "taints": []}


def test_strategic_merge_directives() -> None:
    old = {"finalizers": ["x", "y"], "strategy": {"type": "A", "rolling": {}}, "m": {"a": 1}}
    patch = {
        "$deleteFromPrimitiveList/finalizers": ["x"],
        "strategy": {"$retainKeys": ["type"], "type": "B"},
        "m": {"$patch": "replace", "b": 2},
    }
    assert apply_patch(old, patch, STRATEGIC) == {"finalizers": ["y"], "strategy": {"type": "B"}, "m": {"b": 2}}


def test_json_patch_and_its_mistakes() -> None:
    assert apply_patch({"a": 1}, [{"op": "replace", "path": "/a", "value": 2}], JSON_PATCH) == {"a": 2}
    with pytest.raises(ApiError) as missing:
        apply_patch({"a": 1}, [{"op": "remove", "path": "/b"}], JSON_PATCH)
    assert missing.value.code == 422
    with pytest.raises(ApiError) as unknown:
        apply_patch({}, {}, "text/plain")
    assert unknown.value.code == 415


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("a=1", True),
        ("a==1,b", True),
        ("a!=1", False),
        ("a in (1,2),b notin (3)", True),
        ("a in (2,3)", False),
        ("!c", True),
        ("!a", False),
        ("c!=1", True),
    ],
)
def test_label_selectors(selector: str, selected: bool) -> None:
    pod = {"metadata": {"name": "p", "namespace": "n", "labels": {"a": "1", "b": "2"}}}
    assert Selection.parse(POD, "n", {"labelSelector": selector}).matches(pod) is selected


def test_field_selectors_and_namespaces() -> None:
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "x"}, "status": {"phase": "Failed"}}
    assert Selection.parse(POD, None, {"fieldSelector": "spec.nodeName=x,status.phase!=Running"}).matches(pod)
    assert not Selection.parse(POD, "n", {"fieldSelector": "metadata.name=q"}).matches(pod)
    assert not Selection.parse(POD, "m", {}).matches(pod)
    with pytest.raises(ApiError):
        Selection.parse(POD, "n", {"fieldSelector": "what"})


def test_label_selector_objects() -> None:
    expressions = [{"key": "a", "operator": "In", "values": ["1"]}, {"key": "b", "operator": "DoesNotExist"}]
    assert matches_selector({"matchExpressions": expressions}, {"a": "1"})
    assert not matches_selector({"matchExpressions": expressions}, {"a": "1", "b": "2"})
    assert matches_selector({}, {})
    assert not matches_selector(None, {})


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "value": "true"}, True),
        ({"key": "gpu", "value": "present"}, False),
        ({"key": "gpu", "value": "true", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str], tolerated: bool) -> None:
    taint = {"key": "gpu", "value": "true", "effect": "NoSchedule"}
    assert bool(tolerates([toleration], taint)) is tolerated


def _config_map(name: str, **data: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "n"},
        "data": data,
    }


def test_the_store_gives_back_what_it_was_given_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    ref = Ref(CONFIG_MAP, "n", "a")
    store.create(_config_map("a", x="1"))
    kept = store.modify(ref, lambda o: o["data"].update(x="2"))
    store.create(_config_map("b"))
    store.remove(Ref(CONFIG_MAP, "n", "b"))
    version = store.version
    store.close()
    again = Store(tmp_path / "db")
    assert again.select(CONFIG_MAP) == [kept]
    assert again.version == version
    assert again.create(_config_map("c"))["metadata"]["resourceVersion"] == str(version + 1)


def test_a_write_against_an_old_version_is_a_conflict(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    first = store.create(_config_map("a"))["metadata"]["resourceVersion"]
    ref = Ref(CONFIG_MAP, "n", "a")
    store.modify(ref, lambda o: o.update(data={"x": "1"}), first)
    with pytest.raises(ApiError) as conflict:
        store.modify(ref, lambda o: o.update(data={"x": "2"}), first)
    assert (conflict.value.code, conflict.value.reason) == (409, "Conflict")


def test_writes_that_belong_together_are_lost_together(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    store = Store(tmp_path / "db")
    with pytest.raises(KilledError), store.atomically():
        store.create(_config_map("a"))
        other = Store(tmp_path / "db")  # what a server started after a kill at this point would find
        assert other.select(CONFIG_MAP) == []
        raise KilledError


def test_a_finalizer_holds_a_deletion_up(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    obj = _config_map("a")
    obj["metadata"]["finalizers"] = ["mine"]
    store.create(obj)
    ref = Ref(CONFIG_MAP, "n", "a")
    store.modify(ref, lambda o: o["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    assert store.peek(ref) is not None
    store.modify(ref, lambda o: o["metadata"].pop("finalizers"))
    assert store.peek(ref) is None
    assert [c.type for c in store.changes_since(0, 0)][-1] == "DELETED"
