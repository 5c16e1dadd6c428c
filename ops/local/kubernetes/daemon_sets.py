"""DaemonSets as objects: their status says where they would run. No pod is made: nodes bring their devices along.

https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/
"""

from __future__ import annotations

from ops.local.kubernetes.kinds import DAEMON_SET, NODE
from ops.local.kubernetes.objects import Object, condition_is, labels_of, matches_labels, tolerates
from ops.local.kubernetes.store import Store, ref_of


def step(store: Store) -> None:
    """Fills in the status of every DaemonSet."""
    nodes = store.select(NODE)
    for daemon_set in store.select(DAEMON_SET):
        pod = daemon_set["spec"]["template"]["spec"]
        wanted = [n for n in nodes if _runs_on(pod, n)]
        ready = sum(1 for n in wanted if condition_is(n, "Ready"))
        status = {
            "currentNumberScheduled": len(wanted),
            "desiredNumberScheduled": len(wanted),
            "numberMisscheduled": 0,
            "numberReady": ready,
            "numberAvailable": ready,
            "updatedNumberScheduled": len(wanted),
            "observedGeneration": daemon_set["metadata"]["generation"],
        }
        if daemon_set.get("status") != status:
            store.try_modify(ref_of(daemon_set), lambda d, s=status: d.update(status=s))  # type: ignore[misc]


def _runs_on(pod: Object, node: Object) -> bool:
    tolerations = [
        *(pod.get("tolerations") or []),
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists"},
    ]
    taints = [t for t in node["spec"].get("taints") or [] if t["effect"] != "PreferNoSchedule"]
    selected = matches_labels(pod.get("nodeSelector") or {}, labels_of(node))
    return selected and all(tolerates(tolerations, t) for t in taints)
