"""Faults that were planned and never struck: a run without them has not shown what it was to show."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from ops.report.ledger import Ledger
from trainer.events import Event
from trainer.faults.schema import FROM_OUTSIDE, Fault, Phase


class UnstruckFault(BaseModel):
    """A fault of the newest submission's file without a record in the ledger."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, use_attribute_docstrings=True)

    id: str
    class_: str = Field(alias="class")
    rank: int
    step: int
    phase: str
    why: str | None
    """Null: the ledger does not say."""

    def __str__(self) -> str:
        what = f"fault {self.id} ({self.class_}, rank {self.rank}, step {self.step}, phase {self.phase})"
        return f"{what} did not strike: {self.why or 'the ledger does not say why'}"


def unstruck_faults(ledger: Ledger, planned: Iterable[Fault]) -> list[UnstruckFault]:
    """In the order of the file."""
    struck = {str(record.fields["id"]) for record in ledger.of_event(Event.FAULT_INJECTED)}
    return [_unstruck(ledger, fault) for fault in planned if fault.id not in struck]


def _unstruck(ledger: Ledger, fault: Fault) -> UnstruckFault:
    fields = fault.model_dump(mode="json", by_alias=True, include={"id", "class_", "rank", "step", "phase"})
    return UnstruckFault(**fields, why=_why(ledger, fault))


def _why(ledger: Ledger, fault: Fault) -> str | None:
    newest = max((int(record.fields["step"]) for record in ledger.of_event(Event.STEP)), default=0)
    if newest < fault.step - 1:
        return f"no rank came to its step; the newest step is {newest}"
    if fault.phase is Phase.RECOVERY:
        return _why_no_recovery(ledger, fault)
    if fault.phase is Phase.SAVE and not _saved(ledger, fault):
        return f"rank {fault.rank} began no save at step {fault.step}"
    if fault.class_ in FROM_OUTSIDE:
        return "nobody followed the run at its moment, or not every pod and node was up then"
    return None


def _why_no_recovery(ledger: Ledger, fault: Fault) -> str | None:
    others = [r for r in ledger.of_event(Event.FAULT_INJECTED) if int(r.fields["step"]) == fault.step]
    if not others:
        return f"no other fault struck at step {fault.step}, so there was no recovery to strike in"
    if not any(r.t > others[0].t for r in ledger.of_event(Event.ATTEMPT_OPENED)):
        return f"fault {others[0].fields['id']} of the same step brought about no restart"
    return None


def _saved(ledger: Ledger, fault: Fault) -> bool:
    saves = [record for record in ledger.of_event(Event.SNAPSHOT) if record.rank == fault.rank]
    return any(int(record.fields["step"]) == fault.step for record in saves)
