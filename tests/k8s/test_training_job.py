"""The Job as decided: who counts, who waits, who is replaced, and what the container is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from environments.environment import Environment
from k8s.run_spec import RunSpec
from k8s.training_job import run_manifests
from trainer.config import TrainConfig
from trainer.exit_codes import ExitCode
from trainer.faults.schema import load_dumped, parse_faults
from trainer.paths import PodContext

pytestmark = pytest.mark.unit
Documents = dict[str, dict[str, Any]]
FROM_FIELDS = {
    "POD_NAME": "pretrain-1-0-x",
    "POD_UID": "u",
    "POD_IP": "10.0.0.7",
    "NODE_NAME": "node-a",
    "GROUP_RANK": "0",
}


def by_name(environment: Environment, run: RunSpec) -> Documents:
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in run_manifests(environment, run)}


def container(job: dict[str, Any]) -> dict[str, Any]:
    (only,) = job["spec"]["template"]["spec"]["containers"]
    return only


def variables(job: dict[str, Any]) -> dict[str, str]:
    """As a kubelet would give them to the process."""
    return {item["name"]: item.get("value", FROM_FIELDS.get(item["name"])) for item in container(job)["env"]}


def test_the_submission_is_one_job_one_control_job_and_their_services(training: Documents) -> None:
    assert sorted(training) == [
        "Job/pretrain-1",
        "Job/pretrain-1-control",
        "NetworkPolicy/pretrain-1",
        "PodDisruptionBudget/pretrain-1",
        "Service/pretrain-1",
        "Service/pretrain-1-control",
    ]


def test_training_nodes_and_spares_are_indexes_and_the_training_ones_decide(make_environment: Any) -> None:
    documents = by_name(make_environment(nodes=8, spares=2), RunSpec("r", 3, "i@sha256:" + "0" * 64))
    spec = documents["Job/r-3"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 10, 10)
    assert spec["successPolicy"] == {"rules": [{"succeededCount": 8}]}
    assert documents["PodDisruptionBudget/r-3"]["spec"]["minAvailable"] == 10


def test_pods_are_replaced_when_they_have_failed_and_loops_do_not_end_by_a_count(training: Documents) -> None:
    """Reports: trainer#1589, trainer#2981: one owner of the retries, and an end to them (exit code 93)."""
    spec = training["Job/pretrain-1"]["spec"]
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["backoffLimitPerIndex"] == 100
    assert "backoffLimit" not in spec
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_exit_codes_decide_before_disruption_does(training: Documents) -> None:
    rules = training["Job/pretrain-1"]["spec"]["podFailurePolicy"]["rules"]
    assert [rule["action"] for rule in rules] == ["FailJob", "Ignore", "Ignore"]
    assert rules[0]["onExitCodes"] == {"containerName": "trainer", "operator": "In", "values": [90, 93]}
    assert rules[1]["onExitCodes"]["values"] == [ExitCode.PLANNED_STOP]
    assert rules[2]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_the_container_is_told_what_trainer_paths_reads(environment: Environment, training: Documents) -> None:
    context = PodContext.from_environment(variables(training["Job/pretrain-1"]))
    assert str(context.paths.root) == "/fsx/runs/pretrain"
    assert (context.run, context.pod_ip, context.node) == ("pretrain", "10.0.0.7", "node-a")
    told = TrainConfig.model_validate_json(context.config_json)
    assert told.model == environment.training.model
    assert told.loop.peak_tflops_per_gpu == environment.instance.peak_tflops_per_gpu
    assert context.faults_json == "[]"


def test_the_control_pod_is_told_the_same(training: Documents) -> None:
    context = PodContext.from_environment(variables(training["Job/pretrain-1-control"]))
    trained = PodContext.from_environment(variables(training["Job/pretrain-1"]))
    assert (context.paths, context.config_json) == (trained.paths, trained.config_json)


def test_steps_and_faults_of_the_run_reach_the_container(environment: Environment) -> None:
    raw = [{"id": "kill", "class": "sigkill", "rank": 3, "step": 7}]
    faults, problems = parse_faults(raw, source="f.yaml", world_size=16, target_step=50)
    assert not problems
    documents = by_name(environment, RunSpec("r", 1, "i@sha256:" + "0" * 64, faults=faults, steps=50))
    context = PodContext.from_environment(variables(documents["Job/r-1"]))
    assert load_dumped(context.faults_json) == faults
    assert json.loads(context.config_json)["loop"]["steps"] == 50


def test_names_resolve_before_pods_are_ready_and_are_full(training: Documents) -> None:
    """Reports: jobset#603, jobset#504, kubernetes#117819: `gai error -2` at the start."""
    headless, control = training["Service/pretrain-1"], training["Service/pretrain-1-control"]
    assert headless["spec"]["clusterIP"] == "None"
    assert "clusterIP" not in control["spec"]
    for service, job in ((headless, "pretrain-1"), (control, "pretrain-1-control")):
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": job}
    assert training["Job/pretrain-1"]["spec"]["template"]["spec"]["subdomain"] == "pretrain-1"
    endpoint = variables(training["Job/pretrain-1"])["STEADFAST_STORE_ENDPOINT"]
    assert endpoint == "pretrain-1-control.training.svc.cluster.local:29500"


def test_arguments_refer_only_to_variables_that_exist(training: Documents) -> None:
    for name in ("Job/pretrain-1", "Job/pretrain-1-control"):
        known = variables(training[name])
        used = {found for item in container(training[name])["args"] for found in re.findall(r"\$\((\w+)\)", item)}
        assert used and used <= known.keys(), name


def test_nodes_are_ordered_by_index_not_by_address(training: Documents) -> None:
    (entry,) = [item for item in container(training["Job/pretrain-1"])["env"] if item["name"] == "GROUP_RANK"]
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert entry["valueFrom"] == {"fieldRef": {"fieldPath": path}}


def test_the_control_pod_starts_again_at_once_and_outlives_any_number_of_losses(training: Documents) -> None:
    spec = training["Job/pretrain-1-control"]["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert spec["backoffLimit"] >= 1000
    limits = container(training["Job/pretrain-1-control"])["resources"]["limits"]
    assert not any("gpu" in name or "efa" in name for name in limits)


def test_without_root_there_is_no_capability_and_with_it_ipc_lock(make_environment: Any, run: RunSpec) -> None:
    plain = by_name(make_environment(), run)["Job/pretrain-1"]
    assert container(plain)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert plain["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    root = by_name(make_environment(security={"root": True}), run)["Job/pretrain-1"]
    assert root["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 0
    assert "IPC_LOCK" in container(root)["securityContext"]["capabilities"]["add"]


def test_a_capacity_block_stops_the_run_an_hour_before_its_end(make_environment: Any, run: RunSpec) -> None:
    block = {
        "kind": "capacity-block",
        "reservation": "cr-0123456789abcdef0",
        "start": "2026-12-01T11:30:00Z",
        "end": "2026-12-02T11:30:00+00:00",
    }
    told = variables(by_name(make_environment(capacity=block), run)["Job/pretrain-1"])
    assert int(told["STEADFAST_STOP_AT"]) == 1796207400  # 2026-12-02 10:30:00 UTC
    assert "STEADFAST_STOP_AT" not in variables(by_name(make_environment(), run)["Job/pretrain-1"])


def test_the_network_is_pinned_so_that_tcp_is_an_error(training: Documents) -> None:
    """Reports: aws-do-eks#54 (Pod Identity's link), nccl#229 (a silent fall-back), HyperPod#134."""
    told = variables(training["Job/pretrain-1"])
    assert (told["FI_PROVIDER"], told["NCCL_NET"]) == ("efa", "Libfabric")
    assert "pod-id-link" in told["NCCL_SOCKET_IFNAME"]


@pytest.mark.parametrize(("in_process", "nvls"), [(True, "0"), (False, None)])
def test_nvls_is_off_only_under_in_process_restart(
    make_environment: Any, run: RunSpec, in_process: bool, nvls: str | None
) -> None:
    environment = make_environment(training={"recovery": {"in_process": in_process}})
    assert variables(by_name(environment, run)["Job/pretrain-1"]).get("NCCL_NVLS_ENABLE") == nvls


def test_forked_loaders_go_without_huge_pages(make_environment: Any, run: RunSpec) -> None:
    """Reports: aws-ofi-nccl#69, aws-ofi-nccl#179: `OSError 12` in the loader."""
    environment = make_environment(training={"data": {"num_workers": 2}})
    assert variables(by_name(environment, run)["Job/pretrain-1"])["FI_EFA_USE_HUGE_PAGE"] == "0"


def test_pods_of_a_run_reach_each_other_and_no_other_run(training: Documents) -> None:
    spec = training["NetworkPolicy/pretrain-1"]["spec"]
    selector = spec["podSelector"]["matchLabels"]
    assert spec["ingress"] == [{"from": [{"podSelector": {"matchLabels": selector}}]}]
    assert spec["egress"] == [{"to": [{"podSelector": {"matchLabels": selector}}]}]
    for name in ("Job/pretrain-1", "Job/pretrain-1-control"):
        labels = training[name]["spec"]["template"]["metadata"]["labels"]
        assert selector.items() <= labels.items()


def test_dictionaries_need_neither_node_nor_torch() -> None:
    """`submit` makes these; a Node process or torch would cost every call seconds."""
    code = "import sys, k8s.training_job, k8s.bandwidth_check; print({'jsii', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
