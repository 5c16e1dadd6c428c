"""Pods to nodes: selectors, required affinity, taints, resources.

https://kubernetes.io/docs/concepts/scheduling-eviction/
"""

from __future__ import annotations

from collections import Counter

from ops.local.kubernetes.events import record
from ops.local.kubernetes.kinds import NODE, POD
from ops.local.kubernetes.objects import (
    Object,
    condition,
    is_finished_pod,
    is_terminating,
    labels_of,
    matches_expressions,
    matches_labels,
    matches_selector,
    name_of,
    namespace_of,
    set_condition,
    tolerates,
)
from ops.local.kubernetes.quantities import lacking, pod_requests, remaining
from ops.local.kubernetes.store import Store, ref_of


def step(store: Store) -> None:
    """Binds every pod that fits somewhere; says of the others why not."""
    for pod in store.select(POD):
        if pod["spec"].get("nodeName") or is_finished_pod(pod) or is_terminating(pod):
            continue
        if pod["spec"].get("schedulingGates"):
            continue
        _schedule(store, pod)


def _schedule(store: Store, pod: Object) -> None:
    nodes, pods = store.select(NODE), store.select(POD)
    reasons: Counter[str] = Counter()
    fitting: list[tuple[int, str]] = []
    for node in nodes:
        on_node = [p for p in pods if p["spec"].get("nodeName") == name_of(node) and not is_finished_pod(p)]
        problems = _problems(pod, node, on_node, pods, nodes)
        reasons.update(problems[:1])
        if not problems:
            fitting.append((len(on_node), name_of(node)))
    if fitting:
        _bind(store, pod, min(fitting)[1])
    else:
        _refuse(store, pod, len(nodes), reasons)


def _problems(
    pod: Object, node: Object, on_node: list[Object], pods: list[Object], nodes: list[Object]
) -> list[str]:
    problems = []
    tolerations = pod["spec"].get("tolerations") or []
    if node["spec"].get("unschedulable"):
        problems.append("node(s) were unschedulable")
    hard = [t for t in node["spec"].get("taints") or [] if t["effect"] in ("NoSchedule", "NoExecute")]
    untolerated = [t for t in hard if not tolerates(tolerations, t)]
    problems += [f"node(s) had untolerated taint {{{t['key']}: {t.get('value', '')}}}" for t in untolerated]
    if not _selected(pod, node):
        problems.append("node(s) didn't match Pod's node affinity/selector")
    if not _apart(pod, node, pods, nodes):
        problems.append("node(s) didn't match pod anti-affinity rules")
    left = remaining(node.get("status", {}).get("allocatable") or {}, on_node)
    problems += [f"Insufficient {name}" for name in lacking(left, pod_requests(pod))]
    return problems


def _selected(pod: Object, node: Object) -> bool:
    if not matches_labels(pod["spec"].get("nodeSelector") or {}, labels_of(node)):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = required["nodeSelectorTerms"]
    return any(_term_matches(t, node) for t in terms)


def _term_matches(term: Object, node: Object) -> bool:
    fields = {"metadata.name": name_of(node)}
    return matches_expressions(term.get("matchExpressions") or [], labels_of(node)) and matches_expressions(
        term.get("matchFields") or [], fields
    )


def _apart(pod: Object, node: Object, pods: list[Object], nodes: list[Object]) -> bool:
    affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    by_name = {name_of(n): labels_of(n) for n in nodes}
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []:
        key = term["topologyKey"]
        for other in pods:
            same_domain = by_name.get(other["spec"].get("nodeName", ""), {}).get(key) == labels_of(node).get(key)
            rival = namespace_of(other) == namespace_of(pod) and not is_finished_pod(other)
            if rival and same_domain and matches_selector(term.get("labelSelector"), labels_of(other)):
                return False
    return True


def _bind(store: Store, pod: Object, node: str) -> None:
    def bind(p: Object) -> None:
        p["spec"]["nodeName"] = node
        set_condition(p, "PodScheduled", "True")

    store.try_modify(ref_of(pod), bind)
    message = f"Successfully assigned {namespace_of(pod)}/{name_of(pod)} to {node}"
    record(store, pod, "Normal", "Scheduled", message)


def _refuse(store: Store, pod: Object, total: int, reasons: Counter[str]) -> None:
    listed = ", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items()))
    message = f"0/{total} nodes are available: {listed}." if listed else "no nodes available to schedule pods"
    known = condition(pod, "PodScheduled")
    if known is not None and known.get("message") == message:
        return
    store.try_modify(ref_of(pod), lambda p: set_condition(p, "PodScheduled", "False", "Unschedulable", message))
    record(store, pod, "Warning", "FailedScheduling", message)
