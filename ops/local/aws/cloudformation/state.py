"""What CloudFormation remembers: stacks, resources, events, change sets, exports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

ACCOUNT = "123456789012"
GONE = "DELETE_COMPLETE"


def now() -> datetime:
    """The time that events carry."""
    return datetime.now(UTC)


@dataclass
class Resource:
    """One resource of a stack, as it was last made or changed."""

    logical_id: str
    type: str
    status: str = ""
    reason: str = ""
    physical_id: str = ""
    properties: dict[str, Any] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    depends: set[str] = field(default_factory=set)
    deletion_policy: str = "Delete"
    update_replace_policy: str = "Delete"
    metadata: dict[str, Any] = field(default_factory=dict)
    changed_at: datetime = field(default_factory=now)

    def take_body(self, body: Mapping[str, Any], depends: set[str]) -> None:
        """What the template says about it, besides its properties."""
        self.depends = depends
        self.deletion_policy = body.get("DeletionPolicy", "Delete")
        self.update_replace_policy = body.get("UpdateReplacePolicy", "Delete")
        self.metadata = body.get("Metadata", {})


@dataclass(frozen=True)
class Event:
    """One line of a stack's history."""

    stack_id: str
    stack_name: str
    logical_id: str
    physical_id: str
    type: str
    status: str
    reason: str
    token: str
    id: str = field(default_factory=lambda: str(uuid4()))
    time: datetime = field(default_factory=now)


@dataclass(frozen=True)
class Export:
    """A value that one stack offers to others by name."""

    name: str
    value: str
    stack_id: str
    stack_name: str


@dataclass
class Output:
    """A stack's output."""

    key: str
    value: str
    description: str = ""
    export: str = ""


@dataclass
class Settings:
    """What a stack was asked to be: everything that a rollback must be able to restore."""

    body: str
    template: dict[str, Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    capabilities: list[str] = field(default_factory=list)


@dataclass
class Stack:
    """A stack with its resources, events and outputs."""

    id: str
    name: str
    region: str
    settings: Settings
    status: str = "REVIEW_IN_PROGRESS"
    reason: str = ""
    description: str = ""
    created_at: datetime = field(default_factory=now)
    updated_at: datetime | None = None
    deleted_at: datetime | None = None
    resources: dict[str, Resource] = field(default_factory=dict)
    replaced: list[Resource] = field(default_factory=list)
    before: dict[str, Resource] | None = None
    before_settings: Settings | None = None
    events: list[Event] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    termination_protection: bool = False
    role_arn: str = ""
    notification_arns: list[str] = field(default_factory=list)
    change_set_id: str = ""
    token: str = ""
    disable_rollback: bool = False

    @property
    def exports(self) -> Iterator[Export]:
        """What this stack offers to others."""
        return (Export(o.export, o.value, self.id, self.name) for o in self.outputs if o.export)

    @property
    def busy(self) -> bool:
        """Whether an operation runs, so that none other may start."""
        return self.status.endswith("_IN_PROGRESS") and self.status != "REVIEW_IN_PROGRESS"


@dataclass(frozen=True)
class Change:
    """What a change set will do to one resource."""

    action: str
    logical_id: str
    type: str
    physical_id: str = ""
    replacement: str = ""
    scope: tuple[str, ...] = ()
    details: tuple[tuple[str, str], ...] = ()


@dataclass
class ChangeSet:
    """A proposed change of a stack."""

    id: str
    name: str
    stack_id: str
    kind: str
    settings: Settings
    changes: list[Change]
    status: str = "CREATE_COMPLETE"
    reason: str = ""
    execution_status: str = "AVAILABLE"
    description: str = ""
    import_existing: bool = False
    role_arn: str = ""
    notification_arns: list[str] = field(default_factory=list)
    created_at: datetime = field(default_factory=now)


@dataclass
class Region:
    """CloudFormation's whole memory in one region."""

    name: str
    stacks: dict[str, Stack] = field(default_factory=dict)
    change_sets: dict[str, ChangeSet] = field(default_factory=dict)

    def stack(self, name_or_id: str) -> Stack | None:
        """The living stack of that name, or any stack of that id."""
        if name_or_id in self.stacks:
            return self.stacks[name_or_id]
        named = (s for s in self.stacks.values() if s.name == name_or_id and s.status != GONE)
        return next(named, None)

    def change_set(self, name: str, stack_name: str | None) -> ChangeSet | None:
        """The change set of that id, or of that name in that stack (names are not unique across stacks)."""
        if name in self.change_sets:
            return self.change_sets[name]
        stack = self.stack(stack_name) if stack_name else None
        found = (c for c in self.change_sets.values() if stack and c.name == name and c.stack_id == stack.id)
        return next(found, None)

    def exports(self) -> dict[str, Export]:
        """Every export of the region by name."""
        living = (s for s in self.stacks.values() if s.status != GONE)
        return {export.name: export for stack in living for export in stack.exports}

    def importers(self, export: str) -> list[str]:
        """The stacks that use the export."""
        return [s.name for s in self.stacks.values() if s.status != GONE and export in s.imports]


REGIONS: dict[str, Region] = {}


def region(name: str) -> Region:
    """CloudFormation's memory in the region."""
    return REGIONS.setdefault(name, Region(name))


def arn(kind: str, region_name: str, name: str) -> str:
    """A new ARN of a stack or a change set."""
    return f"arn:aws:cloudformation:{region_name}:{ACCOUNT}:{kind}/{name}/{uuid4()}"
