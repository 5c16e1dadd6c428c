"""A whole life on this machine, thin but real: synthesize, train, break, recover, report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from k8s.names import RUN_LABEL
from ops.console import Output
from ops.errors import RefusedError, VerificationError
from ops.files import write_atomically
from ops.follow import End, outcome_of
from ops.local.aws.local_aws import LocalAws
from ops.local.holders import Holders
from ops.local.kubernetes.cluster import LocalCluster
from ops.local_use import refuse_if_used
from ops.local_world import local_world, running_world, runs_of
from ops.options import Call
from ops.report.ledger import Ledger
from ops.report.reference import ReferenceTime, reference_time
from ops.report.run_directory import load_run
from ops.report.verify import verify
from ops.submission import Finished, finish, show, submit_run
from ops.submit import Request
from ops.synth import synthesize
from ops.tree_digest import local_image
from ops.world import World
from trainer.checkpoint.verify import verify_generation
from trainer.events import Event, read_ledger

CONTROL, FAULTED = "demo-control", "demo-faults"
ENVIRONMENTS = ("local", "two-node-p5")
FAULTS = """\
# What `steadfast demo` breaks. A fault fires once per run, whatever restarts.
- {id: kill, class: sigkill, rank: 1, step: 27}
- {id: raise, class: exception, rank: 0, step: 54}
"""


@dataclass(frozen=True)
class Demo:
    """What the demo came to."""

    control: Finished
    faulted: Finished
    problems: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {"control": self.control.as_dict(), "faulted": self.faulted.as_dict(), "problems": self.problems}


def run_demo(output: Output, state: Path) -> Demo:
    """Live the whole life under `state`, from nothing to nothing; raises what made it fail."""
    for name in ENVIRONMENTS:
        _synthesize(output, name, state)
    call = Call.of(ENVIRONMENTS[0], local=True, as_json=output.as_json)
    _start_clean(call)
    with local_world(call) as world:
        for name, fact in world.facts.items():
            output.say(f"substituted {name}: {fact}")
        output.say(f"\n{CONTROL}: undisturbed, saved only at its end: it gives the reference step time")
        control = _train(_without_saves(world), Request(CONTROL, local=True, image=local_image(call.environment)))
        control.raise_if_failed()
        t_ref = reference_time(load_run(world.runs.fetch(CONTROL)).ledger)
        output.say(f"\n{FAULTED}: the same, saved as the file says, with a SIGKILL and an exception")
        faults = call.state / "demo-faults.yaml"
        write_atomically(faults, FAULTS)
        request = Request(FAULTED, faults=faults, local=True, image=local_image(call.environment))
        faulted = _train(world, request, t_ref)
    return Demo(control, faulted, _problems(call, control, faulted))


def judge(demo: Demo) -> None:
    """Raises RunFailedError or VerificationError unless the demo showed what it promises."""
    demo.faulted.raise_if_failed()
    if demo.problems:
        raise VerificationError("the demo ended, and something does not hold", details=demo.problems)


def tell(output: Output, demo: Demo) -> None:
    """The faulted run's tables, and where everything is."""
    show(Output(), demo.faulted) if not output.as_json else None

    def words(console: Console) -> None:
        console.print(f"control run: report in {demo.control.reports}")
        console.print("parameters and loss of both runs are equal bit by bit" if _same(demo) else "")

    output.result(demo.as_dict(), words)


def _synthesize(output: Output, name: str, state: Path) -> None:
    call = Call.of(name, local=True)
    folder = state / "demo-synth" / name
    shutil.rmtree(folder, ignore_errors=True)
    with output.working(f"synthesizing {name}: no network, no credentials"):
        written = synthesize(call.environment, folder, local=True)
    output.say(
        f"{name}: valid; {len(written.templates)} templates, {len(written.manifests)} manifests in {folder}"
    )


def _start_clean(call: Call) -> None:
    """A demo that was killed may have left a cluster and its runs behind. Raises RefusedError if others use it."""
    if LocalAws(call.state / "aws").is_running():
        raise RefusedError(
            f"{call.environment.name} is up on the emulated AWS", fix="`steadfast destroy local --local` first"
        )
    world = running_world(call)
    runs = (
        {job.metadata.labels[RUN_LABEL] for job in world.cluster.jobs() if not outcome_of(job)} if world else set()
    )
    if others := sorted(runs - {CONTROL, FAULTED}):
        raise RefusedError(f"runs are under way in {call.environment.name}: {', '.join(others)}")
    holders = Holders(call.state)
    with holders.changing():
        refuse_if_used(call, holders)
        LocalCluster(call.state).stop()
        holders.forget()
    for run in (CONTROL, FAULTED):
        shutil.rmtree(call.state / "fsx" / "runs" / run, ignore_errors=True)


def _without_saves(world: World) -> World:
    """The same environment, but for the interval between saves: a reference holds no checkpoint."""
    environment = world.call.environment
    training = environment.training
    rarely = training.checkpoint.model_copy(update={"persist_every": training.loop.steps, "snapshot_every": None})
    changed = training.model_copy(update={"checkpoint": rarely})
    call = replace(world.call, environment=environment.model_copy(update={"training": changed}))
    return replace(world, call=call)


def _train(world: World, request: Request, t_ref: ReferenceTime | None = None) -> Finished:
    planned = submit_run(world, request, t_ref)
    return finish(world, planned, notes=_notes(world.runs.fetch(request.run) / "events"))


def _notes(events: Path) -> Callable[[], Iterator[str]]:
    """What is worth saying while a run goes on, each thing once."""
    said: set[str] = set()

    def fresh() -> Iterator[str]:
        for line in _remarkable(Ledger.of(read_ledger(events))) if events.is_dir() else ():
            if line not in said:
                said.add(line)
                yield line

    return fresh


def _remarkable(ledger: Ledger) -> Iterator[str]:
    for record in ledger.records:
        fields = record.fields
        match record.event:
            case Event.FAULT_INJECTED:
                where = f"rank {fields['fault_rank']} at step {fields['step']}"
                yield f"  fault {fields['id']}: {fields['class']} strikes {where}"
            case Event.ATTEMPT_OPENED:
                source = fields.get("from") or "nothing"
                yield f"  attempt {record.attempt} starts from {source}"
            case Event.COMMITTED:
                yield f"  committed {fields['generation']}"
            case _:
                pass


def _same(demo: Demo) -> bool:
    first, second = demo.control.summary, demo.faulted.summary
    return bool(first and second and first.params_sha256 == second.params_sha256)


def _problems(call: Call, control: Finished, faulted: Finished) -> list[str]:
    problems = verify(load_run(runs_of(call).fetch(FAULTED)), verify_generation)
    demo = Demo(control, faulted, [])
    if faulted.outcome.end is End.REACHED and not _same(demo):
        problems.append("the run with faults did not end with the control run's parameters")
    if faulted.summary is None or len(faulted.summary.faults) != 2:
        problems.append("not every fault struck")
    return problems
