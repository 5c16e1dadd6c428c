"""Runs a campaign: an undisturbed run, then each planned one, held against it. What is finished stays so."""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from ops.campaign_plan import CampaignPlan, CampaignSpec, PlannedRun, When
from ops.errors import InvalidInputError, RefusedError, RunFailedError
from ops.files import write_atomically
from ops.follow import End, Outcome
from ops.options import local_folder
from ops.report.recovery import FaultFigures
from ops.report.reference import ReferenceTime
from ops.report.run_directory import control_reference, load_run
from ops.submission import Finished, finish, submit_run
from ops.submit import Request
from ops.tree_digest import local_image
from ops.world import World
from trainer.faults.schema import Fault

RECORDS = "campaign.json"


class RunOverdueError(Exception):
    """A run took longer than the campaign allows."""


class Shown(BaseModel):
    """One planned fault, and what became of it."""

    run: str
    fault: Fault
    when: When
    recovered: bool
    problem: str
    """Why it does not count as recovered; empty if it does."""
    figures: FaultFigures | None


class RunResult(BaseModel):
    """One run of a campaign that has ended."""

    run: str
    end: str
    reason: str
    params_sha256: str | None
    wall_s: float | None
    faults: list[Shown]


class Records(BaseModel):
    """What campaign.json holds, so that a campaign goes on where it was."""

    plan: str
    """Digest of spec, training configuration and plan."""
    versions: dict[str, str] = {}
    machine: str = ""
    params_sha256: str | None = None
    t_ref: ReferenceTime | None = None
    runs: dict[str, RunResult] = {}


@dataclass
class Campaign:
    """A plan, where its records are kept, and the world it runs in."""

    spec: CampaignSpec
    plan: CampaignPlan
    world: World
    stem: str

    @property
    def folder(self) -> Path:
        """Records and fault files."""
        return campaign_folder(self.world.call.environment.name, self.stem)

    def run(self, after_each: Callable[[Records], None] = lambda _: None) -> Records:
        """Until every run has ended. Raises RunFailedError when the undisturbed run fails, RefusedError."""
        with self._alone():
            records = self._open()
            if records.params_sha256 is None:
                self._undisturbed(records)
            for number, planned in enumerate(self.plan.runs, start=1):
                if planned.name not in records.runs:
                    count = f"run {number} of {len(self.plan.runs)}"
                    self.world.call.output.say(f"\n{planned.name} ({count}): {len(planned.faults)} faults")
                    records.runs[planned.name] = self._disturbed(planned, records)
                    self.keep(records)
                    after_each(records)
            return records

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two at once would take away each other's runs. Raises RefusedError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError(f"the campaign in {self.folder} is under way") from None
            yield

    def _open(self) -> Records:
        digest = self.digest()
        try:
            records = Records.model_validate_json((self.folder / RECORDS).read_text())
        except FileNotFoundError:
            return Records(plan=digest, machine=machine())
        if records.plan != digest:
            raise InvalidInputError(
                f"{self.folder} holds a campaign with another file or environment",
                fix="give the file another name, or remove the folder and the runs",
            )
        return records

    def digest(self) -> str:
        """Of all that decides what is run."""
        environment = self.world.call.environment
        parts = [self.spec.model_dump_json(), environment.training.model_dump_json(), repr(self.plan)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def keep(self, records: Records) -> None:
        """Write the records, whole."""
        write_atomically(self.folder / RECORDS, records.model_dump_json(by_alias=True, indent=1) + "\n")

    def _undisturbed(self, records: Records) -> None:
        name = f"{self.stem}-control"
        self.world.call.output.say(f"{name}: undisturbed, for comparison")
        finished = self._train(name, None, None)
        finished.raise_if_failed()
        if finished.summary is None:
            raise RunFailedError(f"run {name} left no records")
        records.params_sha256 = finished.summary.params_sha256
        records.versions = finished.summary.versions
        records.t_ref = control_reference(self.world.runs.fetch(name))
        self.keep(records)

    def _disturbed(self, planned: PlannedRun, records: Records) -> RunResult:
        file = self.folder / f"{planned.name}.yaml"
        with file.open("w") as stream:
            YAML().dump([_entry(fault.model_dump(mode="json", by_alias=True)) for fault in planned.faults], stream)
        return judge(planned, self._train(planned.name, file, records.t_ref), records.params_sha256)

    def _train(self, name: str, faults: Path | None, t_ref: ReferenceTime | None) -> Finished:
        """Submit, or go on with what an interrupted campaign left; an overdue run is ended."""
        call, world = self.world.call, self.world
        resume = world.existing(name) is not None
        image = local_image(call.environment) if call.local else None
        request = Request(name, self.spec.steps, faults, resume, image, call.local)
        self._clear(name)
        planned = submit_run(world, request, t_ref)
        try:
            finished = finish(world, planned, notes=_limit(self.spec.limit_s))
        except RunOverdueError as error:
            summary = load_run(world.runs.fetch(name)).summary()
            finished = Finished(name, Outcome(End.FAILED, str(error)), summary, None)
        world.cluster.delete_submission(name, planned.spec.submission)
        world.cluster.wait_gone(planned.spec.job_name)
        return finished

    def _clear(self, run: str) -> None:
        """What an interrupted campaign left under way would hold the nodes."""
        for job in self.world.cluster.jobs(run):
            self.world.cluster.delete_submission(run, int(job.metadata.name.rpartition("-")[2]))
            self.world.cluster.wait_gone(job.metadata.name)


def _limit(limit_s: float) -> Callable[[], Iterator[str]]:
    deadline_s = time.monotonic() + limit_s

    def check() -> Iterator[str]:
        if time.monotonic() > deadline_s:
            raise RunOverdueError(f"not over after {limit_s:.0f} s")
        return iter(())

    return check


def _entry(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def judge(planned: PlannedRun, finished: Finished, expected_sha256: str | None) -> RunResult:
    """Each fault counts only if it struck, was recovered, and its run ended with the undisturbed parameters."""
    summary = finished.summary
    figures = {figure.id: figure for figure in summary.faults} if summary else {}
    of_run = _run_problem(finished, expected_sha256)
    shown = [_shown(planned, fault, figures.get(fault.id), of_run) for fault in planned.faults]
    return RunResult(
        run=planned.name,
        end=finished.outcome.end,
        reason=finished.outcome.reason,
        params_sha256=summary.params_sha256 if summary else None,
        wall_s=summary.wall_s if summary else None,
        faults=shown,
    )


def _run_problem(finished: Finished, expected_sha256: str | None) -> str:
    if finished.outcome.end is not End.REACHED:
        return f"the run {finished.outcome.end}: {finished.outcome.reason}"
    if finished.summary is None or finished.summary.params_sha256 != expected_sha256:
        return "the parameters differ from the undisturbed run's"
    return ""


def _shown(planned: PlannedRun, fault: Fault, figures: FaultFigures | None, of_run: str) -> Shown:
    of_fault = "did not strike" if figures is None else ("" if figures.recovered else "not recovered")
    problem = "; ".join(filter(None, (of_fault, of_run)))
    return Shown(
        run=planned.name,
        fault=fault,
        when=planned.whens[fault.id],
        recovered=not problem,
        problem=problem,
        figures=figures,
    )


def campaign_folder(environment: str, stem: str) -> Path:
    """Where a campaign's records and tables are."""
    return local_folder() / "campaigns" / environment / stem


def machine() -> str:
    """What the figures were taken on."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} × {platform.machine()}, {memory_gib:.0f} GiB, Linux {platform.release()}"
