"""What a change set would do: two templates compared, replacement decided by AWS's schemas."""

from __future__ import annotations

from typing import Any

from ops.local.aws import resources as models
from ops.local.aws.cloudformation import schemas
from ops.local.aws.cloudformation.errors import ValidationError
from ops.local.aws.cloudformation.intrinsics import SymbolicEvaluator
from ops.local.aws.cloudformation.scope import SymbolicScope
from ops.local.aws.cloudformation.state import Change, Settings, Stack
from ops.local.aws.cloudformation.template import dependencies, references

COMPARED = ("Properties", "DeletionPolicy", "UpdateReplacePolicy", "Metadata")
NO_CHANGES = (
    "The submitted information didn't contain changes. Submit different information to create a change set."
)


def check(stack: Stack, settings: Settings) -> None:
    """Refuses a template that CloudFormation refuses, before anything is changed."""
    template = settings.template
    evaluator = SymbolicEvaluator(template, settings.parameters, SymbolicScope(stack, {}))
    wanted = {name: body for name, body in template["Resources"].items() if evaluator.holds(body)}
    _check_types(template["Resources"])
    dependencies(wanted)
    used = [evaluator.value(body.get("Properties", {})) for body in wanted.values()]
    _check_names(wanted, used, "Resources")
    outputs = [evaluator.value(b) for b in template.get("Outputs", {}).values() if evaluator.holds(b)]
    _check_names(wanted, outputs, "Outputs")
    _check_properties(stack.region, wanted)


def _check_types(resources: dict[str, Any]) -> None:
    without = sorted(name for name, body in resources.items() if not isinstance(body, dict) or "Type" not in body)
    if without:
        raise ValidationError(f"Template format error: [{'/Type, '.join(without)}/Type] missing")
    unknown = sorted({body["Type"] for body in resources.values() if models.find(body["Type"]) is None})
    if unknown:
        raise ValidationError(f"Template format error: Unrecognized resource types: [{', '.join(unknown)}]")


def _check_names(wanted: dict[str, Any], evaluated: list[Any], block: str) -> None:
    """What is left of references once conditions are decided must name resources that will exist."""
    named = {name for value in evaluated for name in references(value) if not name.startswith("AWS::")}
    unresolved = sorted(named - set(wanted))
    if unresolved:
        raise ValidationError(
            "Template format error: Unresolved resource dependencies "
            f"[{', '.join(unresolved)}] in the {block} block of the template"
        )


def _check_properties(region: str, wanted: dict[str, Any]) -> None:
    """Only the keys can be judged here: values may be symbols still."""
    for name, body in wanted.items():
        schema = schemas.schema_of(body["Type"], region)
        if schema is None or not schema.get("properties"):
            continue
        strange = sorted(set(body.get("Properties", {})) - set(schema["properties"]))
        if strange:
            raise ValidationError(
                f"Properties validation failed for resource {name} with message:\n"
                + "\n".join(f"#: extraneous key [{key}] is not permitted" for key in strange)
            )


def compute(stack: Stack, new: Settings) -> list[Change]:
    """The changes that lead from the stack as it is to the new settings."""
    old_bodies = _symbolic(stack, stack.settings) if stack.resources else {}
    new_bodies = _symbolic(stack, new)
    changes: dict[str, Change] = {}
    for name, body in new_bodies.items():
        change = _change(stack, name, old_bodies.get(name), body)
        if change is not None:
            changes[name] = change
    _propagate(stack, new_bodies, changes)
    for name, resource in stack.resources.items():
        if name not in new_bodies and resource.physical_id:
            changes[name] = Change("Remove", name, resource.type, resource.physical_id)
    return list(changes.values())


def outputs_differ(stack: Stack, new: Settings) -> bool:
    """Whether the outputs alone make a change."""

    def outputs(settings: Settings) -> Any:
        evaluator = SymbolicEvaluator(settings.template, settings.parameters, SymbolicScope(stack, {}))
        declared = settings.template.get("Outputs", {})
        return {key: evaluator.value(body) for key, body in declared.items() if evaluator.holds(body)}

    return bool(outputs(stack.settings) != outputs(new)) or stack.settings.tags != new.tags


def _symbolic(stack: Stack, settings: Settings) -> dict[str, dict[str, Any]]:
    evaluator = SymbolicEvaluator(settings.template, settings.parameters, SymbolicScope(stack, {}))
    return {
        name: {key: evaluator.value(body[key]) for key in COMPARED if key in body} | {"Type": body["Type"]}
        for name, body in settings.template.get("Resources", {}).items()
        if evaluator.holds(body)
    }


def _change(stack: Stack, name: str, old: dict[str, Any] | None, new: dict[str, Any]) -> Change | None:
    resource = stack.resources.get(name)
    if old is None or resource is None or not resource.physical_id:
        return Change("Add", name, new["Type"])
    if old == new:
        return None
    if old["Type"] != new["Type"]:
        raise ValidationError(
            "Update of resource type is not permitted. The new template modifies resource type of the "
            f"following resources: [{name}]"
        )
    before, after = old.get("Properties", {}), new.get("Properties", {})
    schema = schemas.schema_of(new["Type"], stack.region) or {}
    replaced = schemas.is_replaced(schema, before, after)
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    scope = tuple(key for key in COMPARED if old.get(key) != new.get(key))
    return Change(
        "Modify",
        name,
        new["Type"],
        resource.physical_id,
        "True" if replaced else "False",
        scope,
        tuple((key, "Always" if any(r.split("/")[0] == key for r in replaced) else "Never") for key in changed),
    )


def _propagate(stack: Stack, bodies: dict[str, dict[str, Any]], changes: dict[str, Change]) -> None:
    """A replaced resource changes what refers to it, which may be replaced in turn."""
    grew = True
    while grew:
        grew = False
        replaced = {name for name, change in changes.items() if change.replacement in ("True", "Conditional")}
        for name, body in bodies.items():
            if name not in changes and replaced & set(references(body.get("Properties", {}))):
                physical_id = stack.resources[name].physical_id
                changes[name] = Change("Modify", name, body["Type"], physical_id, "Conditional", ("Properties",))
                grew = True
