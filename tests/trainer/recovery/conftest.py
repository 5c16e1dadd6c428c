"""Starts small jobs, and runs one undisturbed for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pods
import pytest
from small_jobs import StartJob, config

from trainer.config import TrainConfig
from trainer.faults.schema import Fault


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartJob]:
    """Starts a job; ends what is left of it afterwards."""
    jobs: list[pods.Job] = []

    def begin(settings: TrainConfig | None = None, faults: Sequence[Fault] = (), **options: Any) -> pods.Job:
        root = tmp_path / f"job{len(jobs)}"
        pods.write_data(root / "fsx" / "data")
        job = pods.Job(root, settings or config(), faults=faults, **options)
        jobs.append(job)
        job.start()
        return job

    yield begin
    for job in jobs:
        job.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Completion record of BASE without faults, computed once."""
    root = tmp_path_factory.mktemp("undisturbed")
    pods.write_data(root / "fsx" / "data")
    with pods.running(pods.Job(root, config())) as job:
        codes = job.wait(120)
        assert set(codes.values()) == {0}, job.logs()
        return job.completion()
