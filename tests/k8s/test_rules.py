"""Each rule against what people really wrote: the manifest of the report, and the same put right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from environments.environment import Environment
from k8s import rules
from k8s.manifest import InvalidManifestError, Manifest

pytestmark = pytest.mark.unit
Change = Callable[[dict[str, Any]], None]


def pod_of(job: Manifest) -> dict[str, Any]:
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


def trainer_of(job: Manifest) -> dict[str, Any]:
    container: dict[str, Any] = pod_of(job)["containers"][0]
    return container


def set_limit(name: str, value: str | None) -> Change:
    def change(job: Manifest) -> None:
        for side in ("limits", "requests"):
            trainer_of(job)["resources"][side].pop(name, None)
            if value is not None:
                trainer_of(job)["resources"][side][name] = value

    return change


def only_request_efa(job: Manifest) -> None:
    del trainer_of(job)["resources"]["limits"]["vpc.amazonaws.com/efa"]


def set_variable(name: str, value: str) -> Change:
    def change(job: Manifest) -> None:
        kept = [item for item in trainer_of(job)["env"] if item["name"] != name]
        trainer_of(job)["env"] = [*kept, {"name": name, "value": value}]

    return change


def drop_variable(name: str) -> Change:
    def change(job: Manifest) -> None:
        trainer_of(job)["env"] = [item for item in trainer_of(job)["env"] if item["name"] != name]

    return change


def host_path(path: str) -> Change:
    def change(job: Manifest) -> None:
        pod_of(job)["volumes"].append({"name": "host", "hostPath": {"path": path}})

    return change


def shared_memory(volume: dict[str, Any]) -> Change:
    def change(job: Manifest) -> None:
        kept = [item for item in pod_of(job)["volumes"] if item["name"] != "shm"]
        pod_of(job)["volumes"] = [*kept, {"name": "shm", **volume}]

    return change


def image(name: str) -> Change:
    return lambda job: trainer_of(job).update(image=name)


def pod_field(**fields: Any) -> Change:
    return lambda job: pod_of(job).update(fields)


def job_field(**fields: Any) -> Change:
    return lambda job: job["spec"].update(fields)


def ipc_lock(job: Manifest) -> None:
    trainer_of(job)["securityContext"]["capabilities"]["add"] = ["IPC_LOCK"]


def add_argument(argument: str) -> Change:
    return lambda job: trainer_of(job)["args"].append(argument)


def exit_codes(values: list[int]) -> Change:
    return lambda job: job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"].update(values=values)


WRONG_JOBS: list[tuple[str, Change, str]] = [
    ("modelplane#197: no EFA", set_limit("vpc.amazonaws.com/efa", None), "32, and fewer means TCP"),
    ("GCO example: 4 EFA for 8 GPUs", set_limit("vpc.amazonaws.com/efa", "4"), "8 GPUs and 4 EFA devices"),
    ("half a node", set_limit("nvidia.com/gpu", "4"), "4 GPUs and 32 EFA devices"),
    ("nvcf#1354: EFA in requests only", only_request_efa, "requested but is not the same limit"),
    ("aws-do-eks#63", host_path("/dev/infiniband"), "is the host's /dev/infiniband"),
    ("awsome NVRx manifest", host_path("/dev/shm/"), "is the host's /dev/shm"),
    ("nccl#525: Kubernetes' 64 MiB", shared_memory({"emptyDir": {}}), "no sized memory volume"),
    ("on disk", shared_memory({"emptyDir": {"sizeLimit": "8Gi"}}), "no sized memory volume"),
    ("not counted", set_limit("memory", "1Gi"), "must exceed the /dev/shm volume"),
    ("awsome#1230", set_limit("hugepages-2Mi", "20Gi"), "nodes reserve 10256Mi"),
    ("eks-ami#2122", image("trainer:latest"), "is not exact"),
    ("no tag", image("registry:5000/trainer"), "is not exact"),
    ("a tag for training", image("trainer:v1.2.3"), "is not exact"),
    ("awsome manifest", set_variable("RDMAV_FORK_SAFE", "1"), "sets RDMAV_FORK_SAFE"),
    ("awsome#1106", set_variable("NCCL_NET_GDR_LEVEL", "PHB"), "sets NCCL_NET_GDR_LEVEL"),
    ("GCO example", set_variable("NCCL_SOCKET_IFNAME", "eth0"), "must exclude loopback"),
    ("nccl#229", drop_variable("NCCL_NET"), "NCCL_NET is not pinned"),
    ("kubernetes#56374", ipc_lock, "root and IPC_LOCK go together"),
    ("root alone", pod_field(securityContext={"runAsUser": 0}), "root and IPC_LOCK go together"),
    ("a path", add_argument("--ft-cycle-info-dir=/fsx/runs/r"), "holds a path; name a variable"),
    ("trainer#2981", job_field(ttlSecondsAfterFinished=60), "takes the Job away"),
    ("OnFailure", pod_field(restartPolicy="OnFailure"), "must be Never"),
    ("API server's 422", exit_codes([93, 90]), "[93, 90] must be ordered"),
    ("0 would never match", exit_codes([0, 93]), "without 0"),
    ("one character more", lambda job: job["metadata"].update(name="j" * 62), "longer than 61"),
]


@pytest.mark.parametrize(
    ("change", "said"), [case[1:] for case in WRONG_JOBS], ids=[case[0] for case in WRONG_JOBS]
)
def test_a_job_that_somebody_really_wrote(
    environment: Environment, training: dict[str, Manifest], change: Change, said: str
) -> None:
    job = copy.deepcopy(training["Job/pretrain-1"])
    rules.check(environment, [job])
    change(job)
    with pytest.raises(InvalidManifestError) as caught:
        rules.check(environment, [job])
    assert any(said in problem for problem in caught.value.problems), caught.value.problems


def daemon_set(tolerations: list[dict[str, Any]]) -> Manifest:
    pod = {"tolerations": tolerations, "containers": [{"name": "plugin", "image": "registry/plugin:v1.0"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "plugin"},
        "spec": {"template": {"spec": pod}},
    }


GPU_TAINT = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("tolerations", "good"),
    [
        ([], False),  # eksctl embeds such a plug-in
        ([{"key": "CriticalAddonsOnly", "operator": "Exists"}], False),  # eks-charts' default
        ([{"key": GPU_TAINT, "operator": "Equal", "value": "present", "effect": "NoSchedule"}], False),  # NFD
        ([{"key": GPU_TAINT, "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": GPU_TAINT, "value": "true", "effect": "NoSchedule"}], True),
        ([{"key": GPU_TAINT, "operator": "Exists"}], True),
        ([{"operator": "Exists"}], True),
    ],
)
def test_daemons_and_the_taint(environment: Environment, tolerations: list[dict[str, Any]], good: bool) -> None:
    document = daemon_set(tolerations)
    if good:
        rules.check(environment, [document])
    else:
        with pytest.raises(InvalidManifestError, match=r"does not tolerate nvidia\.com/gpu=true:NoSchedule"):
            rules.check(environment, [document])


def thing(kind: str, **spec: Any) -> Manifest:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "thing"}, "spec": spec}


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (thing("Service"), "publishNotReadyAddresses must be true"),
        (thing("Service", publishNotReadyAddresses=True, type="LoadBalancer"), "aws-cdk#18650"),
        (thing("PodDisruptionBudget", maxUnavailable=0), "must be an integer minAvailable"),
        (thing("PodDisruptionBudget", minAvailable="100%"), "must be an integer minAvailable"),
        (thing("StorageClass"), "no StorageClass"),
        (thing("PersistentVolumeClaim"), 'storageClassName must be ""'),
        (thing("PersistentVolume", storageClassName="gp3"), 'storageClassName must be ""'),
        (
            thing("PersistentVolume", storageClassName="", persistentVolumeReclaimPolicy="Recycle"),
            "must be Retain",
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else None,
)
def test_other_objects(environment: Environment, document: Manifest, said: str) -> None:
    with pytest.raises(InvalidManifestError) as caught:
        rules.check(environment, [document])
    assert said in str(caught.value)


def test_every_rule_names_the_report_or_symptom_that_taught_it() -> None:
    for rule in rules.RULES:
        assert rule.__doc__ and len(rule.__doc__) > 40, rule.__name__


def test_every_problem_names_its_object(environment: Environment) -> None:
    with pytest.raises(InvalidManifestError) as caught:
        rules.check(environment, [thing("Service"), thing("StorageClass")])
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["Service/thing", "StorageClass/thing"]
