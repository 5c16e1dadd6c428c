"""The all-reduce Job: all nodes, once, with the table's bars."""

from __future__ import annotations

import json
from typing import Any

import cdk8s
import pytest
from kubernetes_validate import validate

from k8s.bandwidth_check import bandwidth_charts
from k8s.manifest import Manifest, manifests
from k8s.run_spec import InvalidRunError, RunSpec

pytestmark = pytest.mark.unit


@pytest.fixture
def documents(make_environment: Any) -> dict[str, Manifest]:
    environment = make_environment(spares=1)
    run = RunSpec("check", 1, "registry/trainer@sha256:" + "0" * 64)
    made = manifests(bandwidth_charts(cdk8s.App(), environment, run))
    for document in made:
        validate(document, environment.kubernetes_version, strict=True)
    return {document["kind"]: document for document in made}


def test_every_node_takes_part_and_nothing_is_tried_again(documents: dict[str, Manifest]) -> None:
    spec = documents["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (3, 3, 0)
    assert spec["activeDeadlineSeconds"] == 900


def test_it_asks_for_whole_nodes_and_prints_the_provider(documents: dict[str, Manifest]) -> None:
    (container,) = documents["Job"]["spec"]["template"]["spec"]["containers"]
    told = {item["name"]: item.get("value") for item in container["env"]}
    assert container["resources"]["limits"]["vpc.amazonaws.com/efa"] == "32"
    assert (told["NCCL_DEBUG"], told["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")
    assert told["STEADFAST_CHECK_HOST"] == "check-1-0.check-1.training.svc.cluster.local"
    bars = json.loads(told["STEADFAST_BARS"])
    assert bars[str(64_000_000)] < bars[str(1_000_000_000)] < bars[str(16_000_000_000)]


def test_all_ranks_of_all_nodes_meet_at_the_first_pod(documents: dict[str, Manifest]) -> None:
    (container,) = documents["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "torch.distributed.run"]
    assert {"--nnodes=3", "--nproc-per-node=8", "--node-rank=$(JOB_COMPLETION_INDEX)"} <= set(container["args"])
    assert container["args"][-2:] == ["-m", "trainer.bandwidth"]


def test_it_needs_a_digest_too(make_environment: Any) -> None:
    with pytest.raises(InvalidRunError, match="has no digest"):
        bandwidth_charts(cdk8s.App(), make_environment(), RunSpec("check", 1, "trainer:v1"))
