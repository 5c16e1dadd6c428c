"""`check --nodes`: an all-reduce over the nodes, judged against the instance table's size-specific bars."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from k8s.run_spec import RunSpec
from ops.errors import CloudError, InvalidInputError
from ops.follow import End, outcome_of
from ops.submission import refuse_without_nodes
from ops.tree_digest import local_image
from ops.world import World

RUN = "check-nodes"
LIMIT_S = 960.0
"""A little more than the Job's own deadline."""
POLL_S = 0.5


@dataclass(frozen=True)
class NodeCheck:
    """What rank 0 measured, or why nothing was."""

    good: bool
    rows: list[dict[str, Any]]
    problem: str | None
    device: str

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {"good": self.good, "bandwidth": self.rows, "problem": self.problem, "device": self.device}

    def show(self, console: Console) -> None:
        """For people."""
        table = Table("message", "bus bandwidth", "bar", "", box=None, title=f"all-reduce, {self.device}")
        for row in self.rows:
            verdict = "ok" if row["met"] else "[red]below the bar"
            size = f"{row['size_bytes'] / 1e6:,.0f} MB"
            table.add_row(size, f"{row['bus_gb_s']:.2f} GB/s", f"{row['bar_gb_s']:.2f} GB/s", verdict)
        console.print(table)
        if self.problem:
            console.print(self.problem, markup=False)


def check_nodes(world: World) -> NodeCheck:
    """Run the check's Job and take it away again.

    Raises InvalidInputError without an image, RefusedError when too few nodes are up, and CloudError when the
    Job ends without a measurement.
    """
    environment, cluster = world.call.environment, world.cluster
    image = local_image(environment) if world.call.local else environment.image
    if image is None:
        raise InvalidInputError("image: is not set", fix="`steadfast image push`")
    refuse_without_nodes(world, environment.nodes + environment.spares)
    spec = RunSpec(RUN, 1, image)
    cluster.delete_submission(RUN, 1)
    cluster.wait_gone(spec.job_name)
    cluster.create_all(_manifests(world, spec))
    try:
        return _result(world, spec.job_name)
    finally:
        cluster.delete_submission(RUN, 1)


def _manifests(world: World, spec: RunSpec) -> list[dict[str, Any]]:
    import cdk8s

    from k8s.bandwidth_check import bandwidth_charts
    from k8s.manifest import manifests

    return manifests(bandwidth_charts(cdk8s.App(), world.call.environment, spec))


def _result(world: World, job: str) -> NodeCheck:
    deadline_s = time.monotonic() + LIMIT_S
    while (outcome := outcome_of(world.cluster.job(job))) is None:
        if time.monotonic() > deadline_s:
            raise CloudError(f"Job {job} has not ended after {LIMIT_S:.0f} s")
        time.sleep(POLL_S)
    pods = world.cluster.pods(job)
    logs = {pod.name: world.cluster.log(pod.name) for pod in pods}
    for line in (line for log in logs.values() for line in log.splitlines()):
        if line.startswith('{"bandwidth"'):
            found = json.loads(line)
            return NodeCheck(outcome.end is End.REACHED, found["bandwidth"], found["problem"], found["device"])
    details = [f"{pod.name}: exit {pod.exit_code} {pod.reason}" for pod in pods]
    tail = [line for log in logs.values() for line in log.splitlines()[-3:]]
    raise CloudError(f"the check measured nothing: {outcome.reason}", details=[*details, *tail])
