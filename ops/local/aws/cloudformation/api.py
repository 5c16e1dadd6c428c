"""CloudFormation's API: the requests of the CDK command line and of boto3."""

from __future__ import annotations

from urllib.parse import unquote, urlparse

from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, BaseResponse, EmptyResult

from ops.local.aws import clients
from ops.local.aws.cloudformation import changes, engine, parameters, views
from ops.local.aws.cloudformation.errors import ChangeSetNotFoundError, ValidationError
from ops.local.aws.cloudformation.history import set_stack
from ops.local.aws.cloudformation.state import (
    GONE,
    ChangeSet,
    Region,
    Settings,
    Stack,
    arn,
    now,
    region,
)
from ops.local.aws.cloudformation.template import Template, parse
from ops.local.aws.settings import LIVE

UPDATABLE = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")
EVENTS_PER_PAGE = 100


class AlreadyExistsError(ServiceException):
    """A change set or stack of that name exists."""

    code = "AlreadyExistsException"


class CloudFormationApi(BaseResponse):
    """One method for each action."""

    def __init__(self) -> None:
        super().__init__(service_name="cloudformation")
        self.automated_parameter_parsing = True

    # --- change sets

    def create_change_set(self) -> ActionResult:
        """Compares the asked template with the stack."""
        name, stack_name = self._get_param("ChangeSetName"), self._get_param("StackName")
        kind = self._get_param("ChangeSetType") or "UPDATE"
        stack = self._stack_for_change(stack_name, kind)
        if self._region.change_set(name, stack.id):
            raise AlreadyExistsError(
                f"ChangeSet {name} cannot be created due to a mismatch with existing attributes"
            )
        change_set = self._new_change_set(name, kind, stack)
        try:
            change_set.settings.parameters = parameters.resolve(
                change_set.settings.template, change_set.settings.given, stack.region
            )
            changes.check(stack, change_set.settings)
            change_set.changes = changes.compute(stack, change_set.settings)
            if not change_set.changes and not changes.outputs_differ(stack, change_set.settings):
                _fail(change_set, changes.NO_CHANGES)
        except ValidationError as error:
            _fail(change_set, error.message)
        self._region.change_sets[change_set.id] = change_set
        return ActionResult({"Id": change_set.id, "StackId": stack.id})

    def _new_change_set(self, name: str, kind: str, stack: Stack) -> ChangeSet:
        body = self._template_body(stack)
        return ChangeSet(
            id=arn("changeSet", self.region, name),
            name=name,
            stack_id=stack.id,
            kind=kind,
            settings=self._settings(body, parse(body), stack),
            changes=[],
            description=self._get_param("Description") or "",
            import_existing=bool(self._get_param("ImportExistingResources")),
            role_arn=self._get_param("RoleARN") or stack.role_arn,
            notification_arns=list(self._get_param("NotificationARNs") or []),
        )

    def _settings(self, body: str, template: Template, stack: Stack) -> Settings:
        asked_tags = self._get_param("Tags")
        tags = stack.settings.tags if asked_tags is None else {tag["Key"]: tag["Value"] for tag in asked_tags}
        return Settings(
            body=body,
            template=template,
            given=parameters.given(self._get_param("Parameters") or [], stack.settings.given),
            tags=tags,
            capabilities=list(self._get_param("Capabilities") or []),
        )

    def describe_change_set(self) -> ActionResult:
        """What the change set would do."""
        change_set = self._change_set()
        return ActionResult(views.change_set(change_set, self._region.stacks[change_set.stack_id]))

    def list_change_sets(self) -> ActionResult:
        """The stack's change sets."""
        stack = self._stack()
        found = [c for c in self._region.change_sets.values() if c.stack_id == stack.id]
        return ActionResult({"Summaries": [views.change_set_summary(c, stack) for c in found]})

    def delete_change_set(self) -> ActionResult:
        """Forgets the change set; one that does not exist is no error."""
        found = self._region.change_set(self._get_param("ChangeSetName"), self._get_param("StackName"))
        if found is not None:
            del self._region.change_sets[found.id]
        return EmptyResult()

    def execute_change_set(self) -> ActionResult:
        """Starts the change; the stack's status tells how it goes."""
        change_set = self._change_set()
        stack = self._region.stacks[change_set.stack_id]
        if change_set.execution_status != "AVAILABLE":
            raise ServiceException(
                "InvalidChangeSetStatus",
                f"ChangeSet [{change_set.id}] cannot be executed in its current status of [{change_set.status}]",
            )
        engine.refuse_if_busy(stack, "updated")
        change_set.execution_status = "EXECUTE_COMPLETE"
        stack.change_set_id, stack.role_arn = change_set.id, change_set.role_arn
        stack.notification_arns = change_set.notification_arns
        stack.disable_rollback = bool(self._get_param("DisableRollback"))
        stack.token = self._get_param("ClientRequestToken") or ""
        self._execute(stack, change_set.settings, change_set.import_existing)
        self._forget_change_sets(stack)
        return EmptyResult()

    def _execute(self, stack: Stack, settings: Settings, import_existing: bool = False) -> None:
        stack.description = settings.template.get("Description", "")
        if stack.status == "REVIEW_IN_PROGRESS":
            stack.settings = settings
            set_stack(stack, "CREATE_IN_PROGRESS", "User Initiated")
            engine.start(stack, engine.Operation(stack, import_existing).create)
        else:
            engine.begin_update(stack, settings)
            set_stack(stack, "UPDATE_IN_PROGRESS", "User Initiated")
            engine.start(stack, engine.Operation(stack, import_existing).update)

    def _forget_change_sets(self, stack: Stack) -> None:
        for change_set in list(self._region.change_sets.values()):
            if change_set.stack_id == stack.id and change_set.id != stack.change_set_id:
                del self._region.change_sets[change_set.id]

    # --- stacks

    def create_stack(self) -> ActionResult:
        """Makes a stack without a change set."""
        stack = self._stack_for_change(self._get_param("StackName"), "CREATE", direct=True)
        body = self._template_body(stack)
        settings = self._checked(stack, body)
        stack.disable_rollback = bool(self._get_param("DisableRollback"))
        stack.termination_protection = bool(self._get_param("EnableTerminationProtection"))
        self._region.stacks[stack.id] = stack
        self._execute(stack, settings)
        return ActionResult({"StackId": stack.id})

    def update_stack(self) -> ActionResult:
        """Updates a stack without a change set."""
        stack = self._stack_for_change(self._get_param("StackName"), "UPDATE")
        settings = self._checked(stack, self._template_body(stack))
        if not changes.compute(stack, settings) and not changes.outputs_differ(stack, settings):
            raise ValidationError("No updates are to be performed.")
        self._execute(stack, settings)
        return ActionResult({"StackId": stack.id})

    def _checked(self, stack: Stack, body: str) -> Settings:
        settings = self._settings(body, parse(body), stack)
        settings.parameters = parameters.resolve(settings.template, settings.given, stack.region)
        changes.check(stack, settings)
        return settings

    def delete_stack(self) -> ActionResult:
        """Starts the deletion; a stack that does not exist is no error."""
        stack = self._region.stack(self._get_param("StackName"))
        if stack is None or stack.status == GONE:
            return EmptyResult()
        if stack.termination_protection:
            raise ValidationError(f"Stack [{stack.name}] cannot be deleted while TerminationProtection is enabled")
        if stack.status != "DELETE_IN_PROGRESS":
            stack.token = self._get_param("ClientRequestToken") or ""
            before, retain = stack.status, list(self._get_param("RetainResources") or [])
            set_stack(stack, "DELETE_IN_PROGRESS", "User Initiated")
            operation = engine.Operation(stack)
            engine.start(stack, lambda: operation.delete(retain, before))
        return EmptyResult()

    def describe_stacks(self) -> ActionResult:
        """One stack by name or id, or all that live."""
        name = self._get_param("StackName")
        found = [self._stack()] if name else [s for s in self._region.stacks.values() if s.status != GONE]
        return ActionResult({"Stacks": [views.stack(s) for s in found]})

    def list_stacks(self) -> ActionResult:
        """Every stack, the deleted ones too, unless filtered."""
        wanted = self._get_param("StackStatusFilter") or []
        found = [s for s in self._region.stacks.values() if not wanted or s.status in wanted]
        return ActionResult({"StackSummaries": [views.stack_summary(s) for s in found]})

    def describe_stack_events(self) -> ActionResult:
        """The newest events first, a page at a time."""
        stack = self._stack()
        if LIVE.strikes("events_missing", stack.name):
            return ActionResult({"StackEvents": []})
        start = int(self._get_param("NextToken") or 0)
        newest_first = [views.event(e) for e in reversed(stack.events)]
        page = newest_first[start : start + EVENTS_PER_PAGE]
        more = start + EVENTS_PER_PAGE < len(newest_first)
        return ActionResult({"StackEvents": page, "NextToken": str(start + EVENTS_PER_PAGE) if more else None})

    def describe_events(self) -> ActionResult:
        """The same history by operation; a change set by itself has none."""
        if self._get_param("ChangeSetName"):
            return ActionResult({"OperationEvents": []})
        stack = self._stack()
        only_failed = bool((self._get_param("Filters") or {}).get("FailedEvents"))
        found = [e for e in reversed(stack.events) if not only_failed or e.status.endswith("_FAILED")]
        if LIVE.strikes("events_missing", stack.name):
            found = []
        return ActionResult({"OperationEvents": [views.operation_event(e) for e in found]})

    def list_hook_results(self) -> ActionResult:
        """There are no hooks here."""
        return ActionResult({"HookResults": []})

    def describe_stack_resources(self) -> ActionResult:
        """Every resource of a stack, or one of them."""
        name = self._get_param("LogicalResourceId")
        stack = self._stack()
        found = [r for r in stack.resources.values() if r.status and name in (None, r.logical_id)]
        return ActionResult({"StackResources": [views.resource(stack, r) for r in found]})

    def describe_stack_resource(self) -> ActionResult:
        """One resource of a stack."""
        stack, name = self._stack(), self._get_param("LogicalResourceId")
        if name not in stack.resources:
            raise ValidationError(f"Resource {name} does not exist for stack {stack.name}")
        return ActionResult({"StackResourceDetail": views.resource_detail(stack, stack.resources[name])})

    def list_stack_resources(self) -> ActionResult:
        """Every resource of a stack in short."""
        stack = self._stack()
        found = [views.resource_summary(r) for r in stack.resources.values() if r.status]
        return ActionResult({"StackResourceSummaries": found})

    def get_template(self) -> ActionResult:
        """The template as it was submitted."""
        name = self._get_param("ChangeSetName")
        settings = self._change_set().settings if name else self._stack().settings
        return ActionResult({"TemplateBody": settings.body, "StagesAvailable": ["Original", "Processed"]})

    def get_template_summary(self) -> ActionResult:
        """The parameters and types of a template."""
        name = self._get_param("StackName")
        stack = self._stack() if name else None
        template = stack.settings.template if stack else parse(self._template_body(None))
        return ActionResult(views.template_summary(template))

    def validate_template(self) -> ActionResult:
        """Whether the template can be read."""
        return ActionResult(views.template_summary(parse(self._template_body(None))))

    def update_termination_protection(self) -> ActionResult:
        """Switches termination protection."""
        stack = self._stack()
        stack.termination_protection = bool(self._get_param("EnableTerminationProtection"))
        return ActionResult({"StackId": stack.id})

    def continue_update_rollback(self) -> ActionResult:
        """Tries the rollback of an update again."""
        stack = self._stack()
        if stack.status != "UPDATE_ROLLBACK_FAILED":
            raise ValidationError(f"Stack:{stack.id} is in {stack.status} state and can not continue rollback.")
        set_stack(stack, "UPDATE_ROLLBACK_IN_PROGRESS", "User Initiated")
        engine.start(stack, engine.Operation(stack).roll_back_update)
        return EmptyResult()

    def rollback_stack(self) -> ActionResult:
        """Rolls back what failed with rollback disabled."""
        stack = self._stack()
        if stack.status != "CREATE_FAILED":
            raise ValidationError(f"Stack:{stack.id} is in {stack.status} state and can not be rolled back.")
        set_stack(stack, "ROLLBACK_IN_PROGRESS", "User Initiated")
        engine.start(stack, engine.Operation(stack).roll_back_creation)
        return ActionResult({"StackId": stack.id})

    # --- exports

    def list_exports(self) -> ActionResult:
        """Every export of the region."""
        found = [
            {"ExportingStackId": e.stack_id, "Name": e.name, "Value": e.value}
            for e in self._region.exports().values()
        ]
        return ActionResult({"Exports": found})

    def list_imports(self) -> ActionResult:
        """The stacks that use an export."""
        name = self._get_param("ExportName")
        importers = self._region.importers(name)
        if not importers:
            raise ValidationError(f"Export '{name}' is not imported by any stack.")
        return ActionResult({"Imports": importers})

    # --- finding things

    @property
    def _region(self) -> Region:
        return region(self.region)

    def _stack(self) -> Stack:
        name = self._get_param("StackName")
        stack = self._region.stack(name)
        if stack is None:
            raise ValidationError(f"Stack with id {name} does not exist")
        return stack

    def _change_set(self) -> ChangeSet:
        name = self._get_param("ChangeSetName")
        found = self._region.change_set(name, self._get_param("StackName"))
        if found is None:
            raise ChangeSetNotFoundError(name)
        return found

    def _stack_for_change(self, name: str, kind: str, direct: bool = False) -> Stack:
        stack = self._region.stack(name)
        if kind == "CREATE":
            if stack is not None and (direct or stack.status != "REVIEW_IN_PROGRESS"):
                raise AlreadyExistsError(f"Stack [{name}] already exists and cannot be created again.")
            return stack or self._new_stack(name, keep=not direct)
        if stack is None:
            raise ValidationError(f"Stack [{name}] does not exist")
        if stack.status not in UPDATABLE:
            raise ValidationError(f"Stack:{stack.id} is in {stack.status} state and can not be updated.")
        return stack

    def _new_stack(self, name: str, keep: bool) -> Stack:
        stack = Stack(arn("stack", self.region, name), name, self.region, Settings("", {}))
        if keep:
            self._region.stacks[stack.id] = stack
            set_stack(stack, "REVIEW_IN_PROGRESS", "User Initiated")
        stack.created_at = now()
        return stack

    def _template_body(self, stack: Stack | None) -> str:
        url, body = self._get_param("TemplateURL"), self._get_param("TemplateBody")
        if url:
            return _from_bucket(url, self.region)
        if body:
            return str(body)
        if stack is not None and self._get_param("UsePreviousTemplate"):
            return stack.settings.body
        raise ValidationError("Either Template URL or Template Body must be specified.")


def _fail(change_set: ChangeSet, reason: str) -> None:
    change_set.status, change_set.execution_status, change_set.reason = "FAILED", "UNAVAILABLE", reason


def _from_bucket(url: str, region_name: str) -> str:
    """The object that a template's URL names, path-style (loopback) or virtual-hosted."""
    parsed = urlparse(url)
    host, path = parsed.hostname or "", unquote(parsed.path.lstrip("/"))
    if host.startswith("s3.") or "." not in host or host.replace(".", "").isdigit():
        bucket, _, key = path.partition("/")
    else:
        bucket, key = host.split(".s3", 1)[0], path
    try:
        found = clients.client("s3", region_name).get_object(Bucket=bucket, Key=key)
    except clients.client("s3", region_name).exceptions.ClientError as error:
        raise ValidationError(f"S3 error: {error}") from error
    return str(found["Body"].read().decode())
