"""What the API refuses about Jobs beyond the schema, in the words recorded from a real server."""

from __future__ import annotations

import json
import re
from typing import Any

from ops.local.kubernetes.feature_gates import Gate, Gates
from ops.local.kubernetes.objects import Object, condition_is

Problems = list[tuple[str, str]]

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_IMMUTABLE = (
    "backoffLimitPerIndex",
    "successPolicy",
    "podFailurePolicy",
    "completionMode",
    "managedBy",
    "selector",
)
_TEMPLATE_MUTABLE = ("nodeSelector", "tolerations", "schedulingGates")


def job_problems(job: Object) -> Problems:
    """Every reason to refuse a new Job (defaults already filled in)."""
    spec = job["spec"]
    return [
        *_name(job),
        *_restart_policy(spec),
        *_replacement_policy(spec),
        *_index_fields(spec),
        *_success_policy(spec),
        *_failure_rules(spec),
    ]


def _name(job: Object) -> Problems:
    spec, name = job["spec"], job["metadata"].get("name", "")
    if spec["completionMode"] != "Indexed" or not spec.get("completions"):
        return []
    hostname = f"{name}-{spec['completions'] - 1}"
    if _LABEL.fullmatch(hostname):
        return []
    return [
        (
            "metadata.name",
            f'Invalid value: "{name}": will not able to create pod with invalid DNS label: {hostname}',
        )
    ]


def _restart_policy(spec: Object) -> Problems:
    policy, field = spec["template"]["spec"]["restartPolicy"], "spec.template.spec.restartPolicy"
    if policy == "Always":
        return [(field, 'Required value: valid values: "OnFailure", "Never"')]
    if policy == "OnFailure" and spec.get("podFailurePolicy"):
        return [
            (field, 'Invalid value: "OnFailure": only "Never" is supported when podFailurePolicy is specified')
        ]
    return []


def _replacement_policy(spec: Object) -> Problems:
    policy = spec["podReplacementPolicy"]
    allowed = ("Failed",) if spec.get("podFailurePolicy") else ("Failed", "TerminatingOrFailed")
    if policy in allowed:
        return []
    supported = ", ".join(f'"{a}"' for a in allowed)
    return [("spec.podReplacementPolicy", f'Unsupported value: "{policy}": supported values: {supported}')]


def _index_fields(spec: Object) -> Problems:
    problems: Problems = []
    indexed = spec["completionMode"] == "Indexed"
    per_index, most = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
    if indexed and spec.get("completions") is None:
        problems.append(("spec.completions", "Required value: when completion mode is Indexed"))
    if per_index is not None and not indexed:
        problems.append(
            ("spec.backoffLimitPerIndex", f"Invalid value: {per_index}: requires indexed completion mode")
        )
    if most is not None and per_index is None:
        problems.append(("spec.backoffLimitPerIndex", "Required value: when maxFailedIndexes is specified"))
    if most is not None and spec.get("completions") is not None and most > spec["completions"]:
        text = f"Invalid value: {most}: must be less than or equal to completions"
        problems.append(("spec.maxFailedIndexes", text))
    return problems


def _success_policy(spec: Object) -> Problems:
    policy = spec.get("successPolicy")
    if not policy:
        return []
    if spec["completionMode"] != "Indexed":
        shown = json.dumps({"Rules": policy["rules"]})
        return [("spec.successPolicy", f"Invalid value: {shown}: requires indexed completion mode")]
    problems: Problems = []
    completions = spec.get("completions") or 0
    for i, rule in enumerate(policy["rules"]):
        count = rule.get("succeededCount")
        if count is not None and count > completions:
            text = f"must be less than or equal to {completions} (the number of specified completions)"
            problems.append((f"spec.successPolicy.rules[{i}].succeededCount", f"Invalid value: {count}: {text}"))
    return problems


def _failure_rules(spec: Object) -> Problems:
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
    pod = spec["template"]["spec"]
    names = {c["name"] for c in [*pod.get("containers", []), *(pod.get("initContainers") or [])]}
    problems: Problems = []
    for i, rule in enumerate(rules):
        at = f"spec.podFailurePolicy.rules[{i}]"
        if rule["action"] == "FailIndex" and spec.get("backoffLimitPerIndex") is None:
            text = 'Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set'
            problems.append((f"{at}.action", text))
        if rule.get("onExitCodes"):
            problems += _exit_codes(rule["onExitCodes"], f"{at}.onExitCodes", names)
    return problems


def _exit_codes(on: Object, at: str, containers: set[str]) -> Problems:
    problems: Problems = []
    values = on["values"]
    shown = json.dumps(values, separators=(",", ":"))
    for i, value in enumerate(values):
        if value == 0 and on["operator"] == "In":
            problems.append((f"{at}.values[{i}]", "Invalid value: 0: must not be 0 for the In operator"))
        if value in values[:i]:
            problems.append((f"{at}.values[{i}]", f"Duplicate value: {value}"))
    if values != sorted(values):
        problems.append((f"{at}.values", f"Invalid value: {shown}: must be ordered"))
    name = on.get("containerName")
    if name is not None and name not in containers:
        text = "must be one of the container or initContainer names in the pod template"
        problems.append((f"{at}.containerName", f'Invalid value: "{name}": {text}'))
    return problems


def job_update_problems(old: Object, new: Object, gates: Gates) -> Problems:
    """Every reason to refuse a change of an existing Job under the feature gates of its cluster."""
    before, after = old["spec"], new["spec"]
    problems: Problems = [
        (f"spec.{f}", f"Invalid value: {_shown(after.get(f))}: field is immutable")
        for f in _IMMUTABLE
        if before.get(f) != after.get(f)
    ]
    return problems + _completions_update(before, after) + _template_update(old, new, gates)


def _shown(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _completions_update(before: Object, after: Object) -> Problems:
    if before.get("completions") == after.get("completions"):
        return []
    tandem = before["completionMode"] == "Indexed" and after.get("completions") == after.get("parallelism")
    if tandem and before.get("completions") == before.get("parallelism"):
        return []
    text = (
        f"Invalid value: {_shown(after.get('completions'))}: can only be modified in tandem with spec.parallelism"
    )
    return [("spec.completions", text)]


def _template_update(old: Object, new: Object, gates: Gates) -> Problems:
    before, after = old["spec"]["template"], new["spec"]["template"]
    if before == after:
        return []
    if not _takes_a_new_template(old, gates):
        return [("spec.template", f"Invalid value: {_shown(after)}: field is immutable")]
    if _fixed_part(before["spec"], gates) == _fixed_part(after["spec"], gates):
        return []
    return [("spec.template.spec", f"Invalid value: {_shown(after['spec'])}: field is immutable")]


def _takes_a_new_template(job: Object, gates: Gates) -> bool:
    """The Job is suspended and has never run, or, where Kubernetes allows that, has stopped."""
    status = job.get("status", {})
    if not job["spec"].get("suspend"):
        return False
    if not status.get("startTime"):
        return True
    stopped = condition_is(job, "Suspended") and not status.get("active")
    return stopped and Gate.MUTABLE_SCHEDULING_DIRECTIVES_FOR_SUSPENDED_JOBS in gates


def _fixed_part(spec: Object, gates: Gates) -> Object:
    """The pod spec without what a suspended Job may change (KEP-2926, KEP-5440)."""
    fixed = {k: v for k, v in spec.items() if k not in _TEMPLATE_MUTABLE}
    affinity = {k: v for k, v in (fixed.pop("affinity", None) or {}).items() if k != "nodeAffinity"}
    fixed["affinity"] = affinity
    if Gate.MUTABLE_POD_RESOURCES_FOR_SUSPENDED_JOBS in gates:
        for group in ("containers", "initContainers"):
            fixed[group] = [{k: v for k, v in c.items() if k != "resources"} for c in fixed.get(group) or []]
    return fixed
