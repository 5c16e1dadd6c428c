"""Which node a pod gets, and what is said of a pod that gets none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.local.kubernetes import scheduler
from ops.local.kubernetes.kinds import EVENT, NODE, POD
from ops.local.kubernetes.nodes import NodeMonitor, NodeSpec, TaintManager, node_object
from ops.local.kubernetes.objects import condition, condition_is, is_terminating
from ops.local.kubernetes.store import Ref, Store

pytestmark = pytest.mark.unit

Fields = dict[str, Any]
ROOM = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}
MAINTENANCE = {"key": "maintenance", "value": "yes"}


class Nodes:
    """Nodes, pods and the scheduler, without a cluster."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "db")

    def node(self, name: str, *, unschedulable: bool = False, **fields: Any) -> None:
        """A node with room for a few pods and one GPU."""
        made = node_object(NodeSpec(name, **({"allocatable": ROOM} | fields)), "1.35", "127.0.0.1")
        self.store.create(made | {"spec": made["spec"] | ({"unschedulable": True} if unschedulable else {})})

    def pod(self, name: str, *, labels: dict[str, str] | None = None, namespace: str = "n", **spec: Any) -> Fields:
        """A pod that wants one CPU, looked at by the scheduler."""
        wants = {"requests": {"cpu": "1"}}
        containers = [{"name": "c", "image": "i", "resources": wants}]
        meta = {"name": name, "namespace": namespace, "labels": labels or {}}
        whole = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": {"phase": "Pending"}}
        self.store.create(whole | {"spec": {"containers": containers} | spec})
        return self.schedule(name, namespace)

    def schedule(self, name: str, namespace: str = "n") -> Fields:
        """The pod after the scheduler has looked at all."""
        scheduler.step(self.store)
        return self.store.get(Ref(POD, namespace, name))

    def change(self, name: str, **status: Any) -> None:
        """Changes a pod's status."""
        self.store.modify(Ref(POD, "n", name), lambda p: p["status"].update(status))

    def where(self, name: str, namespace: str = "n") -> str | None:
        """The node that a pod has got."""
        found: str | None = self.store.get(Ref(POD, namespace, name))["spec"].get("nodeName")
        return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.store.close()


def _why(pod: Fields) -> str:
    found = condition(pod, "PodScheduled")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "Unschedulable")
    return str(found["message"])


def _wants(**quantities: str) -> list[Fields]:
    return [{"name": "c", "image": "i", "resources": {"requests": quantities}}]


def test_the_emptiest_node_is_taken_then_the_first_by_name(nodes: Nodes) -> None:
    nodes.node("b")
    nodes.node("a")
    placed = [nodes.pod(f"p{i}")["spec"]["nodeName"] for i in range(4)]
    assert placed == ["a", "b", "a", "b"]
    bound = condition(nodes.store.get(Ref(POD, "n", "p0")), "PodScheduled")
    assert bound is not None
    assert bound["status"] == "True"
    events = [(e["type"], e["reason"], e["message"]) for e in nodes.store.select(EVENT)]
    assert events[0] == ("Normal", "Scheduled", "Successfully assigned n/p0 to a")


def test_a_pod_that_has_ended_leaves_its_room(nodes: Nodes) -> None:
    """https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/#scheduling"""
    nodes.node("a")
    nodes.pod("first", containers=_wants(**{"nvidia.com/gpu": "1"}))
    waiting = nodes.pod("second", containers=_wants(**{"nvidia.com/gpu": "1"}))
    assert _why(waiting) == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    nodes.change("first", phase="Succeeded")
    assert nodes.schedule("second")["spec"]["nodeName"] == "a"


@pytest.mark.parametrize(
    ("node", "pod", "reason"),
    [
        ({"unschedulable": True}, {}, "node(s) were unschedulable"),
        (
            {"taints": (MAINTENANCE | {"effect": "NoSchedule"},)},
            {},
            "node(s) had untolerated taint {maintenance: yes}",
        ),
        (
            {"taints": (MAINTENANCE | {"effect": "NoExecute"},)},
            {},
            "node(s) had untolerated taint {maintenance: yes}",
        ),
        ({}, {"nodeSelector": {"pool": "gpu"}}, "node(s) didn't match Pod's node affinity/selector"),
        ({}, {"containers": _wants(cpu="5")}, "Insufficient cpu"),
        ({"unschedulable": True}, {"containers": _wants(cpu="5")}, "node(s) were unschedulable"),
    ],
)
def test_a_pod_that_no_node_takes_says_why_once(nodes: Nodes, node: Fields, pod: Fields, reason: str) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/"""
    nodes.node("a", **node)
    assert _why(nodes.pod("p", **pod)) == f"0/1 nodes are available: 1 {reason}."
    nodes.schedule("p")
    told = [(e["type"], e["reason"], e["count"]) for e in nodes.store.select(EVENT)]
    assert told == [("Warning", "FailedScheduling", 1)]


def test_nodes_with_the_same_reason_are_counted_together(nodes: Nodes) -> None:
    nodes.node("a", unschedulable=True)
    nodes.node("b", unschedulable=True)
    nodes.node("c", labels={"pool": "gpu"}, allocatable={"cpu": "1"})
    found = _why(nodes.pod("p", containers=_wants(cpu="2"), nodeSelector={"pool": "gpu"}))
    assert found == "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable."


def test_without_nodes_a_pod_waits(nodes: Nodes) -> None:
    assert _why(nodes.pod("p")) == "no nodes available to schedule pods"


@pytest.mark.parametrize(
    ("taint", "tolerations"),
    [
        ({"effect": "PreferNoSchedule"}, []),
        ({"effect": "NoSchedule"}, [{"key": "maintenance", "operator": "Exists"}]),
        ({"effect": "NoExecute"}, [{"key": "maintenance", "value": "yes", "effect": "NoExecute"}]),
    ],
)
def test_taints_that_let_a_pod_in(nodes: Nodes, taint: Fields, tolerations: list[Fields]) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/"""
    nodes.node("a", taints=(MAINTENANCE | taint,))
    assert nodes.pod("p", tolerations=tolerations)["spec"].get("nodeName") == "a"


@pytest.mark.parametrize("held", ["schedulingGates", "deletion", "ended"])
def test_some_pods_are_not_for_the_scheduler(nodes: Nodes, held: str) -> None:
    nodes.pod("p", schedulingGates=[{"name": "wait"}] if held == "schedulingGates" else [])
    if held == "deletion":
        nodes.store.modify(
            Ref(POD, "n", "p"),
            lambda p: p["metadata"].update(
                deletionTimestamp="2027-01-01T00:00:00Z", deletionGracePeriodSeconds=30
            ),
        )
    elif held == "ended":
        nodes.change("p", phase="Failed")
    nodes.node("a")
    assert "nodeName" not in nodes.schedule("p")["spec"]


def _affinity(*terms: Fields) -> Fields:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def _in(key: str, *values: str) -> Fields:
    return {"key": key, "operator": "In", "values": list(values)}


def test_one_term_of_an_affinity_is_enough_and_all_of_it_must_hold(nodes: Nodes) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity"""
    nodes.node("a", labels={"zone": "x", "pool": "gpu"})
    nodes.node("b", labels={"zone": "y", "pool": "gpu"})
    either = _affinity({"matchExpressions": [_in("zone", "z")]}, {"matchExpressions": [_in("zone", "y")]})
    assert nodes.pod("either", **either)["spec"].get("nodeName") == "b"
    both = _affinity({"matchExpressions": [_in("zone", "y"), _in("pool", "system")]})
    assert "affinity/selector" in _why(nodes.pod("both", **both))
    named = _affinity(
        {"matchExpressions": [_in("zone", "x")], "matchFields": [_in("metadata.name", "b")]},
    )
    assert "affinity/selector" in _why(nodes.pod("named", **named))
    assert nodes.pod("preferring", affinity={"nodeAffinity": {}})["spec"].get("nodeName") == "a"


def _apart(key: str = "kubernetes.io/hostname") -> Fields:
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": "t"}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def test_rivals_keep_apart_by_the_topology_they_name(nodes: Nodes) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#inter-pod-affinity-and-anti-affinity"""
    nodes.node("a", labels={"zone": "x"})
    nodes.node("b", labels={"zone": "x"})
    mine = {"app": "t"}
    assert nodes.pod("p0", labels=mine, **_apart())["spec"]["nodeName"] == "a"
    assert nodes.pod("p1", labels=mine, **_apart())["spec"]["nodeName"] == "b"
    third = nodes.pod("p2", labels=mine, **_apart())
    assert _why(third) == "0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules."
    assert nodes.pod("elsewhere", labels=mine, namespace="m", **_apart())["spec"]["nodeName"] == "a"
    assert "anti-affinity" in _why(nodes.pod("zonal", labels=mine, **_apart("zone")))
    nodes.change("p1", phase="Failed")
    assert nodes.schedule("p2")["spec"]["nodeName"] == "b"


# --- the taint manager


UNREACHABLE = "node.kubernetes.io/unreachable"


def _tolerating(key: str, *seconds: int | None) -> list[Fields]:
    plain = {"key": key, "operator": "Exists", "effect": "NoExecute"}
    return [plain | ({} if s is None else {"tolerationSeconds": s}) for s in seconds]


@pytest.mark.parametrize(
    ("taints", "tolerations", "gone_at_s"),
    [
        ([("maintenance", "NoExecute")], [], 0),
        ([("maintenance", "NoSchedule")], [], None),
        ([("maintenance", "NoSchedule"), ("other", "NoExecute")], [], 0),
        ([("maintenance", "NoExecute")], _tolerating("maintenance", None), None),
        ([("maintenance", "NoExecute")], _tolerating("maintenance", 20), 20),
        ([("maintenance", "NoExecute")], _tolerating("maintenance", 60, 20), 20),
        ([("maintenance", "NoExecute")], _tolerating("maintenance", None, 20), 20),
        ([(UNREACHABLE, "NoExecute")], [], 300),
        ([(UNREACHABLE, "NoExecute")], _tolerating(UNREACHABLE, 30), 30),
        ([("node.kubernetes.io/not-ready", "NoExecute")], [], 300),
    ],
)
def test_a_taint_drives_a_pod_away_once_it_is_no_longer_tolerated(
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    taints: list[tuple[str, str]],
    tolerations: list[Fields],
    gone_at_s: int | None,
) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions"""
    now_s = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now_s)
    nodes.node("a", taints=tuple({"key": k, "effect": e} for k, e in taints))
    nodes.pod("p", nodeName="a", tolerations=tolerations)
    nodes.pod("done", nodeName="a")
    nodes.change("done", phase="Succeeded")
    manager = TaintManager(nodes.store, 1.0)
    began_s = now_s
    gone: float | None = None
    while gone is None and now_s < began_s + 400:
        manager.step()
        if is_terminating(nodes.store.get(Ref(POD, "n", "p"))):
            gone = now_s - began_s
        now_s += 5
    assert gone == gone_at_s
    assert not is_terminating(nodes.store.get(Ref(POD, "n", "done")))
    if gone_at_s is not None:
        target = condition(nodes.store.get(Ref(POD, "n", "p")), "DisruptionTarget")
        assert target is not None
        assert target["reason"] == "DeletionByTaintManager"


def test_a_pod_is_driven_away_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    nodes.node("a", taints=(MAINTENANCE | {"effect": "NoExecute"},))
    nodes.pod("p", nodeName="a", terminationGracePeriodSeconds=60)
    manager = TaintManager(nodes.store, 1.0)
    manager.step()
    assert is_terminating(nodes.store.get(Ref(POD, "n", "p")))
    version = nodes.store.version
    manager.step()
    assert nodes.store.version == version


@pytest.mark.parametrize(
    "taint", [MAINTENANCE | {"effect": "NoExecute"}, {"key": UNREACHABLE, "effect": "NoSchedule"}]
)
def test_a_node_never_heard_of_is_lost_after_its_time_whatever_taints_it_has(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, taint: Fields
) -> None:
    """https://kubernetes.io/docs/concepts/architecture/nodes/#node-controller"""
    now_s = 1_800_000_000.0
    monkeypatch.setattr("time.time", lambda: now_s)
    nodes.node("a", taints=(taint,))
    monitor = NodeMonitor(nodes.store, 1.0)
    for ready in (True, True, False):
        monitor.step()
        assert condition_is(nodes.store.get(Ref(NODE, None, "a")), "Ready") == ready
        now_s += 30
    taints = nodes.store.get(Ref(NODE, None, "a"))["spec"]["taints"]
    assert (UNREACHABLE, "NoExecute") in {(t["key"], t["effect"]) for t in taints}


def test_a_node_that_is_heard_of_loses_a_taint_that_somebody_wrote_back(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads taints and writes them again a moment later may bring the controller's own back."""
    monkeypatch.setattr("time.time", lambda: 1_800_000_000.0)
    nodes.node("a", taints=(MAINTENANCE | {"effect": "NoSchedule"}, {"key": UNREACHABLE, "effect": "NoExecute"}))
    monitor = NodeMonitor(nodes.store, 1.0)
    monitor.heartbeats(["a"])
    monitor.step()
    node = nodes.store.get(Ref(NODE, None, "a"))
    assert condition_is(node, "Ready")
    assert [taint["key"] for taint in node["spec"]["taints"]] == [MAINTENANCE["key"]]
