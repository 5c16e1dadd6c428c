"""Where an environment's runs live: a cluster, run directories, and a folder for reports on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k8s.names import RUN_LABEL, TRAINER_CONTAINER
from ops.cluster import Cluster, submission_of
from ops.options import Call, local_folder
from ops.runs import RunStore


@dataclass(frozen=True)
class World:
    """The same for AWS and for this machine."""

    call: Call
    cluster: Cluster
    runs: RunStore
    facts: Mapping[str, str] = field(default_factory=dict)
    """What this machine substitutes; empty on AWS."""

    def reports(self, run: str) -> Path:
        """Where a run's report is kept whatever happens to the environment."""
        return local_folder() / "reports" / self.call.environment.name / run

    def existing(self, run: str) -> dict[str, Any] | None:
        """What the run was begun with: from its run.json, else from its newest Job."""
        stored = self.runs.run_json(run)
        jobs = self.cluster.jobs(run)
        if not jobs:
            return stored
        newest = jobs[-1]
        known = stored or {"run": run, "config": _configuration(newest)}
        return {**known, "submission": max(int(known.get("submission", 0)), submission_of(newest))}

    def names(self) -> list[str]:
        """Every run of the environment that has left a trace."""
        running = {job.metadata.labels[RUN_LABEL] for job in self.cluster.jobs()}
        return sorted(running.union(self.runs.names()))


def _configuration(job: Any) -> Any:
    """The configuration that a Job's container was given."""
    for container in job.spec.template.spec.containers:
        if container.name == TRAINER_CONTAINER:
            for variable in container.env or []:
                if variable.name == "STEADFAST_CONFIG":
                    return json.loads(variable.value)
    return {}
