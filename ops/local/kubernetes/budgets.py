"""PodDisruptionBudgets: how many pods may be evicted, and what an eviction is told.

https://kubernetes.io/docs/tasks/run-application/configure-pdb/
"""

from __future__ import annotations

from ops.local.kubernetes.errors import ApiError
from ops.local.kubernetes.kinds import BUDGET, POD
from ops.local.kubernetes.objects import (
    Object,
    condition_is,
    is_finished_pod,
    is_terminating,
    labels_of,
    matches_selector,
    name_of,
    namespace_of,
    set_condition,
)
from ops.local.kubernetes.store import Ref, Store, ref_of

_NO_SCALE = "jobs.batch does not implement the scale subresource"


def claim_disruption(store: Store, pod: Object) -> None:
    """Takes one allowed disruption from the pod's budget, or refuses with 429."""
    if is_finished_pod(pod) or not condition_is(pod, "Ready"):
        return
    for budget in _budgets_of(store, pod):
        update_budget(store, ref_of(budget))
        status = store.get(ref_of(budget))["status"]
        if status["disruptionsAllowed"] < 1:
            raise _refusal(name_of(budget), status)


def mark_evicted(pod: Object) -> None:
    """The condition by which a podFailurePolicy knows an eviction."""
    set_condition(pod, "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")


def _budgets_of(store: Store, pod: Object) -> list[Object]:
    budgets = store.select(BUDGET, namespace_of(pod))
    return [b for b in budgets if matches_selector(b["spec"].get("selector"), labels_of(pod))]


def _refusal(budget: str, status: Object) -> ApiError:
    failed = next((c for c in status.get("conditions", []) if c["reason"] == "SyncFailed"), None)
    if failed:
        cause = (
            f"The disruption budget {budget} does not allow evicting pods currently because it failed sync: "
            f"{failed['message']}"
        )
    else:
        cause = (
            f"The disruption budget {budget} needs {status['desiredHealthy']} healthy pods "
            f"and has {status['currentHealthy']} currently"
        )
    details = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
    message = "Cannot evict pod as it would violate the pod's disruption budget."
    return ApiError(429, "TooManyRequests", message, details)


def update_budget(store: Store, ref: Ref) -> None:
    """Counts the budget's pods and writes its status."""
    budget = store.get(ref)
    pods = [
        p
        for p in store.select(POD, ref.namespace)
        if matches_selector(budget["spec"].get("selector"), labels_of(p)) and not is_finished_pod(p)
    ]
    healthy = sum(1 for p in pods if condition_is(p, "Ready") and not is_terminating(p))
    store.try_modify(ref, lambda b: _write_status(b, len(pods), healthy))


def _write_status(budget: Object, expected: int, healthy: int) -> None:
    minimum = budget["spec"].get("minAvailable")
    status = budget.setdefault("status", {})
    status["observedGeneration"] = budget["metadata"].get("generation", 1)
    computable = isinstance(minimum, int)
    desired = minimum if isinstance(minimum, int) else 0
    allowed = max(0, healthy - desired) if computable else 0
    status.update(
        currentHealthy=healthy if computable else 0,
        desiredHealthy=desired,
        expectedPods=expected if computable else 0,
        disruptionsAllowed=allowed,
    )
    if not computable:
        message = _NO_SCALE
        set_condition(budget, "DisruptionAllowed", "False", "SyncFailed", message)
    elif allowed:
        set_condition(budget, "DisruptionAllowed", "True", "SufficientPods", "")
    else:
        set_condition(budget, "DisruptionAllowed", "False", "InsufficientPods", "")


def step(store: Store) -> None:
    """Brings every budget's status up to date."""
    for budget in store.select(BUDGET):
        update_budget(store, ref_of(budget))
