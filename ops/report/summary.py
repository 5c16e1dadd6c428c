"""summary.json: the figures of a run, from its ledger and run.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ops.report.buckets import buckets_s
from ops.report.checkpoints import CheckpointFigures, checkpoint_figures, interval_s
from ops.report.ledger import Ledger
from ops.report.recovery import FaultFigures, fault_figures
from ops.report.reference import ReferenceTime
from ops.report.steps import attempts, lost_steps, useful_steps
from ops.report.unstruck import UnstruckFault, unstruck_faults
from trainer.events import Event
from trainer.faults.schema import Fault

SCHEMA = "steadfast/summary/1"


class StepFigures(BaseModel):
    """Counts of optimizer steps."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    done: int
    """Distinct steps that are part of the final state."""
    lost: int
    """Steps done that a rollback undid; over all rollbacks."""
    target: int


class Summary(BaseModel):
    """The interface that other tools read (docs/run-directory.md)."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, use_attribute_docstrings=True)

    schema_: Literal["steadfast/summary/1"] = Field(default="steadfast/summary/1", alias="schema")
    run: str
    world_size: int
    attempts: int
    versions: dict[str, str]
    storage: str | None
    """File system of the run directory."""
    interval_s: float | None
    """Median time between saves."""
    wall_s: float
    steps: StepFigures
    t_ref: ReferenceTime | None
    goodput: float | None
    """steps.done * t_ref / wall_s. Null without a control run."""
    checkpoint: CheckpointFigures
    buckets_s: dict[str, float]
    faults: list[FaultFigures]
    not_struck: list[UnstruckFault] = []
    """Planned by the newest submission, without a record that they struck."""
    final_loss: float | None
    params_sha256: str | None
    """Of sorted names, dtype, shape and full-tensor bytes. Null when the target was not reached."""

    @property
    def reached_target(self) -> bool:
        """The run ended at its target step."""
        return self.params_sha256 is not None and self.steps.done >= self.steps.target

    @property
    def all_recovered(self) -> bool:
        """Every fault that struck was recovered."""
        return all(fault.recovered for fault in self.faults)

    def to_json(self) -> str:
        """As it lies in the run directory."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"


class RunInfo(BaseModel):
    """What the report needs of run.json; everything else in it is left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str
    target_step: int
    versions: dict[str, str] = {}
    storage: str | None = None
    t_ref: ReferenceTime | None = None
    faults: list[Fault] = []


class EmptyLedgerError(Exception):
    """A run without a single record: nothing ran, or the wrong place was looked at."""


def summarize(ledger: Ledger, info: RunInfo) -> Summary:
    """All figures of a run. Raises EmptyLedgerError."""
    if not ledger.records:
        raise EmptyLedgerError(f"run {info.run}: the ledger holds no records")
    wall_s = ledger.end - ledger.begin
    done = useful_steps(ledger)
    final = _final(ledger)
    t_ref = info.t_ref
    return Summary(
        run=info.run,
        world_size=max(ledger.world_sizes.values(), default=0),
        attempts=len(attempts(ledger)),
        versions=dict(info.versions),
        storage=info.storage,
        interval_s=interval_s(ledger),
        wall_s=wall_s,
        steps=StepFigures(done=done, lost=lost_steps(attempts(ledger)), target=info.target_step),
        t_ref=t_ref,
        goodput=None if t_ref is None or not wall_s else done * t_ref.median_s / wall_s,
        checkpoint=checkpoint_figures(ledger, t_ref),
        buckets_s=buckets_s(ledger, t_ref.median_s if t_ref else None),
        faults=fault_figures(ledger),
        not_struck=unstruck_faults(ledger, info.faults),
        final_loss=final.get("final_loss"),
        params_sha256=final.get("params_sha256"),
    )


def _final(ledger: Ledger) -> Mapping[str, Any]:
    records = ledger.of_event(Event.FINAL)
    return records[-1].fields if records else {}
