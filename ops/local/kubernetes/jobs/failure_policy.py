"""podFailurePolicy: what a failed pod means, the first matching rule deciding.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
"""

from __future__ import annotations

from dataclasses import dataclass

from ops.local.kubernetes.objects import Object, name_of, namespace_of


@dataclass(frozen=True)
class Verdict:
    """The rule that matched; `Count` without a rule if none did."""

    action: str
    message: str = ""


def verdict(job: Object, pod: Object) -> Verdict:
    """What the Job's policy says about a failed pod."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or []
    for number, rule in enumerate(rules):
        why = _exit_code_match(rule, pod) if rule.get("onExitCodes") else _condition_match(rule, pod)
        if why:
            return Verdict(rule["action"], f"{why} matching {rule['action']} rule at index {number}")
    return Verdict("Count")


def _exit_code_match(rule: Object, pod: Object) -> str | None:
    on = rule["onExitCodes"]
    status = pod.get("status", {})
    for container in [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]:
        ended = container.get("state", {}).get("terminated")
        if ended is None or ended["exitCode"] == 0 or on.get("containerName") not in (None, container["name"]):
            continue
        if (ended["exitCode"] in on["values"]) == (on["operator"] == "In"):
            where = f"{namespace_of(pod)}/{name_of(pod)}"
            return f"Container {container['name']} for pod {where} failed with exit code {ended['exitCode']}"
    return None


def _condition_match(rule: Object, pod: Object) -> str | None:
    for pattern in rule.get("onPodConditions") or []:
        for condition in pod.get("status", {}).get("conditions") or []:
            same = condition["type"] == pattern["type"] and condition["status"] == pattern.get("status", "True")
            if same:
                return f"Pod {namespace_of(pod)}/{name_of(pod)} has condition {condition['type']}"
    return None
