"""The operations on a stack: create, update, delete, and rolling back what failed."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from ops.local.aws.cloudformation import graph
from ops.local.aws.cloudformation.errors import ValidationError
from ops.local.aws.cloudformation.history import set_resource, set_stack
from ops.local.aws.cloudformation.intrinsics import Evaluator
from ops.local.aws.cloudformation.scope import StackScope
from ops.local.aws.cloudformation.state import Output, Resource, Settings, Stack, now, region
from ops.local.aws.cloudformation.template import dependencies
from ops.local.aws.cloudformation.work import Worker, reason_of
from ops.local.aws.gate import GATE

LOG = logging.getLogger(__name__)
ANSWER_AFTER_S = 4.0


class Operation:
    """One operation on one stack."""

    def __init__(self, stack: Stack, import_existing: bool = False) -> None:
        self.stack = stack
        self.scope = StackScope(stack, stack.resources)
        self.evaluator = Evaluator(stack.settings.template, stack.settings.parameters, self.scope)
        self.worker = Worker(stack, self.evaluator, import_existing)

    def create(self) -> None:
        """Makes every resource, or rolls back."""
        failed = self._bring_to_template()
        problem = self._names(failed, "create") if failed else self._finish_outputs()
        if not problem:
            set_stack(self.stack, "CREATE_COMPLETE")
        elif self.stack.disable_rollback:
            set_stack(self.stack, "CREATE_FAILED", problem)
        else:
            set_stack(self.stack, "ROLLBACK_IN_PROGRESS", f"{problem} Rollback requested by user.")
            self.roll_back_creation()

    def roll_back_creation(self) -> None:
        """Takes away what a failed creation made."""
        self.worker = Worker(self.stack, self.evaluator)
        failed = self._delete(self.stack.resources.values(), on_create=True)
        with GATE.changing():
            self.stack.outputs, self.stack.imports = [], set()
        set_stack(self.stack, "ROLLBACK_FAILED" if failed else "ROLLBACK_COMPLETE", self._names(failed, "delete"))

    def update(self) -> None:
        """Brings the stack to its new settings, or back to the old ones."""
        failed = self._bring_to_template()
        problem = self._names(failed, "update") if failed else self._finish_outputs()
        if problem:
            set_stack(self.stack, "UPDATE_ROLLBACK_IN_PROGRESS", problem)
            self.roll_back_update()
            return
        self.finish_update()

    def finish_update(self) -> None:
        """The cleanup after everything is at its new state."""
        set_stack(self.stack, "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
        self._clean_up()
        set_stack(self.stack, "UPDATE_COMPLETE")

    def roll_back_update(self) -> None:
        """Restores every resource, then removes what the update had made."""
        self.worker = Worker(self.stack, self.evaluator)
        before = self.stack.before or {}
        with GATE.changing():
            self.stack.settings = self.stack.before_settings or self.stack.settings
        changed = [
            name
            for name, resource in self.stack.resources.items()
            if name in before
            and resource.physical_id == before[name].physical_id
            and resource.properties != before[name].properties
        ]
        needs = graph.reverse({name: self.stack.resources[name].depends & set(changed) for name in changed})
        failed = graph.run(needs, lambda name: self.worker.restore(self.stack.resources[name], before[name]))
        if failed:
            set_stack(self.stack, "UPDATE_ROLLBACK_FAILED", self._names(failed, "update"))
            return
        self._return_to(before)
        set_stack(self.stack, "UPDATE_ROLLBACK_COMPLETE")

    def _return_to(self, before: dict[str, Resource]) -> None:
        set_stack(self.stack, "UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS")
        made = [
            resource
            for name, resource in self.stack.resources.items()
            if resource.physical_id and (name not in before or resource.physical_id != before[name].physical_id)
        ]
        self._delete(made, on_create=True)
        with GATE.changing():
            self.stack.resources = dict(before)
            self.stack.before, self.stack.before_settings, self.stack.replaced = None, None, []

    def delete(self, retain: Iterable[str] = (), before: str = "DELETE_FAILED") -> None:
        """Removes the stack with everything its policies let go."""
        in_use = self._exports_in_use(set())
        if in_use:  # aws-cdk#604: the stack goes back to the state it had, with the reason
            set_stack(self.stack, before, in_use)
            return
        kept = set(retain)
        failed = self._delete(
            [*self.stack.resources.values(), *self.stack.replaced], keep=lambda r: r.logical_id in kept
        )
        if failed:
            set_stack(self.stack, "DELETE_FAILED", self._names(failed, "delete"))
            return
        with GATE.changing():
            self.stack.outputs, self.stack.imports, self.stack.deleted_at = [], set(), now()
        set_stack(self.stack, "DELETE_COMPLETE")

    def _bring_to_template(self) -> dict[str, Exception]:
        bodies = {
            name: body
            for name, body in self.stack.settings.template["Resources"].items()
            if self.evaluator.holds(body)
        }
        needs = dependencies(bodies)
        failed = graph.run(needs, lambda name: self._bring(name, bodies[name], needs[name]), self.worker.cancelled)
        with GATE.changing():
            self.stack.imports = self.stack.imports | self.scope.imports
        return failed

    def _bring(self, name: str, body: dict[str, Any], needs: set[str]) -> None:
        with GATE.changing():
            resource = self.stack.resources.setdefault(name, Resource(name, body["Type"]))
            resource.take_body(body, needs)
        if resource.physical_id:
            self.worker.update(resource, body)
        else:
            self.worker.create(resource, body)

    def _finish_outputs(self) -> str:
        """Sets the outputs; gives what is wrong with them, if anything is."""
        try:
            outputs = self._evaluate_outputs()
            problem = self._clashes(outputs) or self._exports_in_use_after(outputs)
        except Exception as error:
            return reason_of(error)
        if not problem:
            with GATE.changing():
                self.stack.outputs, self.stack.imports = outputs, set(self.scope.imports)
        return problem

    def _evaluate_outputs(self) -> list[Output]:
        return [
            Output(
                key,
                str(self.evaluator.value(body["Value"])),
                body.get("Description", ""),
                str(self.evaluator.value(body.get("Export", {}).get("Name", ""))),
            )
            for key, body in self.stack.settings.template.get("Outputs", {}).items()
            if self.evaluator.holds(body)
        ]

    def _clashes(self, outputs: list[Output]) -> str:
        exports = region(self.stack.region).exports()
        for output in outputs:
            other = exports.get(output.export)
            if other is not None and other.stack_id != self.stack.id:
                return f"Export with name {output.export} is already exported by stack {other.stack_name}."
        return ""

    def _exports_in_use_after(self, outputs: list[Output]) -> str:
        new = {output.export: output.value for output in outputs if output.export}
        for export in self.stack.exports:
            users = region(self.stack.region).importers(export.name)
            if users and export.name in new and new[export.name] != export.value:
                return f"Export {export.name} cannot be updated as it is in use by {' and '.join(users)}"
        return self._exports_in_use(set(new))

    def _exports_in_use(self, staying: set[str]) -> str:
        for export in self.stack.exports:
            users = region(self.stack.region).importers(export.name)
            if users and export.name not in staying:
                return f"Export {export.name} cannot be deleted as it is in use by {' and '.join(users)}"
        return ""

    def _clean_up(self) -> None:
        """After an update: what was replaced and what the template no longer names. Failures do not undo it."""
        wanted = self.stack.settings.template["Resources"]
        gone = [
            resource
            for name, resource in self.stack.resources.items()
            if name not in wanted or not self.evaluator.holds(wanted[name])
        ]
        self._delete(self.stack.replaced, policy=lambda r: r.update_replace_policy)
        self._delete(gone)
        with GATE.changing():
            for resource in gone:
                del self.stack.resources[resource.logical_id]
            self.stack.before, self.stack.before_settings, self.stack.replaced = None, None, []

    def _delete(
        self,
        resources: Iterable[Resource],
        *,
        on_create: bool = False,
        policy: Callable[[Resource], str] = lambda r: r.deletion_policy,
        keep: Callable[[Resource], bool] = lambda _: False,
    ) -> dict[str, Exception]:
        """Removes them, each after all that depends on it; gives what stayed."""
        existing = {f"{r.logical_id}/{r.physical_id}": r for r in resources if r.physical_id}
        existing = {key: r for key, r in existing.items() if r.status != "DELETE_COMPLETE"}
        by_name = {r.logical_id: key for key, r in existing.items()}
        needs = {
            key: {by_name[name] for name in r.depends if name in by_name and by_name[name] != key}
            for key, r in existing.items()
        }

        def remove(key: str) -> None:
            chosen = "Retain" if keep(existing[key]) else policy(existing[key])
            self.worker.delete(
                existing[key], "Delete" if on_create and chosen == "RetainExceptOnCreate" else chosen
            )

        failed = graph.run(graph.reverse(needs), remove)
        return {key.split("/")[0]: error for key, error in failed.items()}

    @staticmethod
    def _names(failed: dict[str, Exception], verb: str) -> str:
        if not failed:
            return ""
        return f"The following resource(s) failed to {verb}: [{', '.join(sorted(failed))}]."


def start(stack: Stack, work: Callable[[], None]) -> None:
    """Runs an operation in the background, as the API's callers expect; its status tells how it goes.

    The answer waits a little: the CLI looks at once and then every five seconds only.
    """

    def run() -> None:
        try:
            work()
        except Exception as error:  # an operation must never end without a state
            LOG.exception("operation on %s failed", stack.name)
            status = stack.status.replace("_IN_PROGRESS", "_FAILED")
            set_stack(stack, status, f"Internal Failure of the emulator: {error}")

    thread = threading.Thread(target=run, name=f"stack-{stack.name}", daemon=True)
    thread.start()
    thread.join(ANSWER_AFTER_S)


def begin_update(stack: Stack, settings: Settings) -> None:
    """Remembers what a rollback must restore, and takes the new settings."""
    with GATE.changing():
        stack.before = copy.deepcopy(stack.resources)
        stack.before_settings, stack.settings = stack.settings, settings
        stack.updated_at = now()


def resume(stack: Stack) -> None:
    """Goes on with an operation that a stopped server left behind: creations and updates roll back."""
    operation = Operation(stack)
    for resource in stack.resources.values():
        if resource.status.endswith("_IN_PROGRESS") and "DELETE" not in resource.status:
            set_resource(stack, resource, resource.status.replace("_IN_PROGRESS", "_FAILED"), "Interrupted")
    if stack.status.startswith("DELETE"):
        start(stack, operation.delete)
    elif stack.status in ("CREATE_IN_PROGRESS", "ROLLBACK_IN_PROGRESS"):
        set_stack(stack, "ROLLBACK_IN_PROGRESS", "The emulator was stopped during the creation.")
        start(stack, operation.roll_back_creation)
    elif stack.status == "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS":
        start(stack, operation.finish_update)
    elif stack.before is not None:
        set_stack(stack, "UPDATE_ROLLBACK_IN_PROGRESS", "The emulator was stopped during the update.")
        start(stack, operation.roll_back_update)


def refuse_if_busy(stack: Stack, verb: str) -> None:
    """An operation at a time."""
    if stack.busy:
        raise ValidationError(f"Stack:{stack.id} is in {stack.status} state and can not be {verb}.")
