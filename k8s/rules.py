"""What must hold in every manifest, each rule with the report that taught it. Pure functions over dictionaries.

They run whenever charts are made, so a manifest that breaks one does not synthesize; tests feed them what people
really wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from environments.environment import Environment
from environments.instance_types import HUGE_PAGES_2MIB
from k8s.manifest import InvalidManifestError, Manifest
from k8s.names import JOB_NAME_LIMIT, SHM_MOUNT
from k8s.network_environment import NEVER_SET
from k8s.placement import GPU_TAINT
from k8s.quantities import size_bytes

Rule = Callable[[Environment, Manifest], Iterator[str]]
GPU, EFA, HUGE_PAGES = "nvidia.com/gpu", "vpc.amazonaws.com/efa", "hugepages-2Mi"
NOT_FROM_THE_HOST = ("/dev/infiniband", "/dev/shm")
MIB = 1024**2


def check(environment: Environment, documents: Sequence[Manifest]) -> None:
    """Raises InvalidManifestError with every broken rule of every document."""
    problems = [
        f"{document['kind']}/{document['metadata']['name']}: {problem}"
        for document in documents
        for rule in RULES
        for problem in rule(environment, document)
    ]
    if problems:
        raise InvalidManifestError(problems)


def accelerators_match_the_table(environment: Environment, document: Manifest) -> Iterator[str]:
    """GPUs with too few EFA devices train over TCP without a word: modelplane#197, HyperPod#134."""
    instance = environment.instance
    for limits in map(_limits, _containers(document)):
        found = (str(limits.get(GPU, "0")), str(limits.get(EFA, "0")))
        expected = (str(instance.gpus), str(instance.efa_interfaces))
        if found not in (("0", "0"), expected):
            yield (
                f"asks for {found[0]} GPUs and {found[1]} EFA devices; a {instance.name} has {expected[0]} and "
                f"{expected[1]}, and fewer means TCP"
            )


def extended_resources_are_limits(_: Environment, document: Manifest) -> Iterator[str]:
    """`Limit must be set for non overcommitable resources` looks like a scheduling problem: nvcf#1354."""
    for container in _containers(document):
        requests = container.get("resources", {}).get("requests", {})
        for name in (GPU, EFA, HUGE_PAGES):
            if name in requests and requests[name] != _limits(container).get(name):
                yield f"{name} is requested but is not the same limit; Kubernetes refuses the pod"


def nothing_from_the_host(_: Environment, document: Manifest) -> Iterator[str]:
    """/dev/infiniband shows libfabric devices it cannot open (aws-do-eks#63); /dev/shm outlives pods."""
    if document["kind"] == "DaemonSet":
        return
    for volume in _pod(document).get("volumes", []):
        path = volume.get("hostPath", {}).get("path", "").rstrip("/")
        if path in NOT_FROM_THE_HOST:
            yield f"volume {volume['name']} is the host's {path}; device plug-ins and emptyDir give what is needed"


def shared_memory_is_sized(_: Environment, document: Manifest) -> Iterator[str]:
    """64 MiB of /dev/shm end in a bus error; pages of a memory volume count: ci-infra#490, nccl#525."""
    volumes = {volume["name"]: volume.get("emptyDir", {}) for volume in _pod(document).get("volumes", [])}
    for container in _containers(document):
        limits = _limits(container)
        if GPU not in limits:
            continue
        mounted = [
            volumes.get(mount["name"], {})
            for mount in container.get("volumeMounts", [])
            if mount["mountPath"] == SHM_MOUNT
        ]
        sizes = [size_bytes(volume["sizeLimit"]) for volume in mounted if "sizeLimit" in volume]
        if not sizes or mounted[0].get("medium") != "Memory":
            yield f"no sized memory volume at {SHM_MOUNT}"
        elif "memory" not in limits or size_bytes(limits["memory"]) <= sizes[0]:
            yield f"the memory limit must exceed the {SHM_MOUNT} volume, whose pages count towards it"


def huge_pages_exist(_: Environment, document: Manifest) -> Iterator[str]:
    """A pod that asks for more than the node reserved stays Pending: awsome-distributed-training#1230."""
    reserved = HUGE_PAGES_2MIB * 2 * MIB
    for limits in map(_limits, _containers(document)):
        if HUGE_PAGES in limits and size_bytes(limits[HUGE_PAGES]) > reserved:
            yield f"asks for {limits[HUGE_PAGES]} of huge pages; nodes reserve {reserved // MIB}Mi"


def images_are_exact(_: Environment, document: Manifest) -> Iterator[str]:
    """A tag that moves gives replaced pods other code; training images go by digest: eks-ami#2122."""
    for container in _containers(document):
        image = container["image"]
        tag = image.rsplit("/", 1)[-1].partition(":")[2]
        if "@sha256:" not in image and (not tag or tag == "latest" or GPU in _limits(container)):
            yield f"image {image} is not exact"


def daemons_tolerate_our_taint(_: Environment, document: Manifest) -> Iterator[str]:
    """`DESIRED 0` and no resources on the node: aws-efa-eks#3, nvcf#1349, k8s-device-plugin#1934."""
    if document["kind"] != "DaemonSet":
        return
    if not any(tolerates(item) for item in _pod(document).get("tolerations", [])):
        yield f"does not tolerate {GPU_TAINT['key']}={GPU_TAINT['value']}:{GPU_TAINT['effect']}"


def tolerates(toleration: Mapping[str, Any]) -> bool:
    """Whether a toleration lets a pod onto our GPU nodes."""
    if toleration.get("effect", GPU_TAINT["effect"]) != GPU_TAINT["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key", GPU_TAINT["key"]) == GPU_TAINT["key"]
    return (toleration.get("key"), toleration.get("value")) == (GPU_TAINT["key"], GPU_TAINT["value"])


def variables_are_allowed(_: Environment, document: Manifest) -> Iterator[str]:
    """What AWS says not to set, and NCCL's way around the Pod Identity link: aws-do-eks#54, awsome#1106."""
    for container in _containers(document):
        variables = {item["name"]: item.get("value", "") for item in container.get("env", [])}
        for name in NEVER_SET:
            if name in variables:
                yield f"sets {name}, which AWS says to leave alone"
        if GPU in _limits(container) and not variables.get("NCCL_SOCKET_IFNAME", "").startswith("^lo,"):
            yield "NCCL_SOCKET_IFNAME must exclude loopback and the links that are not the pod's own"
        if GPU in _limits(container) and not variables.get("NCCL_NET"):
            yield "NCCL_NET is not pinned, so a plug-in that does not load means TCP (nccl#229)"


def root_and_ipc_lock_go_together(_: Environment, document: Manifest) -> Iterator[str]:
    """IPC_LOCK does nothing for a process that is not root: kubernetes#56374."""
    pod = _pod(document)
    for container in _containers(document):
        if GPU not in _limits(container):
            continue
        security = {**pod.get("securityContext", {}), **container.get("securityContext", {})}
        locks = "IPC_LOCK" in security.get("capabilities", {}).get("add", [])
        root = security.get("runAsUser", 0) == 0
        if locks != root:
            yield "root and IPC_LOCK go together: one without the other pins no memory"


def paths_are_variables(_: Environment, document: Manifest) -> Iterator[str]:
    """A path in an argument is one that no other place can be given instead of (docs/job.md)."""
    for container in _containers(document):
        for argument in container.get("args", []):
            if container.get("command", ["sh"])[0] == "python" and "=/" in argument:
                yield f"argument {argument} holds a path; name a variable"


def jobs_are_ended_by_one_owner(_: Environment, document: Manifest) -> Iterator[str]:
    """Jobs that come back for ever, that vanish with their result, that wait for a spare: trainer#1589, #2981."""
    spec = document.get("spec", {})
    if document["kind"] != "Job" or spec.get("completionMode") != "Indexed":
        return
    if "ttlSecondsAfterFinished" in spec:
        yield "ttlSecondsAfterFinished takes the Job away before its end was seen"
    if _pod(document).get("restartPolicy") != "Never":
        yield "restartPolicy must be Never: podFailurePolicy needs it"
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        values = rule.get("onExitCodes", {}).get("values", [])
        if values != sorted(set(values)) or 0 in values:
            yield f"exit codes {values} must be ordered, without doubles and without 0"


def names_fit(_: Environment, document: Manifest) -> Iterator[str]:
    """`will not able to create pod with invalid DNS label`, only when the first pod is made."""
    if document["kind"] == "Job" and len(document["metadata"]["name"]) > JOB_NAME_LIMIT:
        yield f"the name is longer than {JOB_NAME_LIMIT} characters"


def budgets_are_integers(_: Environment, document: Manifest) -> Iterator[str]:
    """`jobs.batch does not implement the scale subresource`: maxUnavailable blocks every eviction, for ever."""
    if document["kind"] == "PodDisruptionBudget" and not isinstance(document["spec"].get("minAvailable"), int):
        yield "a Job's budget must be an integer minAvailable"


def services_publish_early(_: Environment, document: Manifest) -> Iterator[str]:
    """`gai error -2` at the start, since names appear only with readiness: jobset#504, kubernetes#117819."""
    if document["kind"] != "Service":
        return
    if not document["spec"].get("publishNotReadyAddresses"):
        yield "publishNotReadyAddresses must be true"
    if document["spec"].get("type") in ("LoadBalancer", "NodePort"):
        yield "load balancers leave interfaces behind that keep the network from being deleted (aws-cdk#18650)"


def volumes_are_static(_: Environment, document: Manifest) -> Iterator[str]:
    """Provisioning from a claim makes file systems until the subnet is full: fsx-csi#382, #433."""
    if document["kind"] == "StorageClass":
        yield "no StorageClass: the file system belongs to its stack"
    if document["kind"] in ("PersistentVolume", "PersistentVolumeClaim") and document["spec"].get(
        "storageClassName", "default"
    ):
        yield 'storageClassName must be "", else the default class provisions'
    if document.get("spec", {}).get("persistentVolumeReclaimPolicy", "Retain") != "Retain":
        yield "persistentVolumeReclaimPolicy must be Retain"


RULES: tuple[Rule, ...] = (
    accelerators_match_the_table,
    extended_resources_are_limits,
    nothing_from_the_host,
    shared_memory_is_sized,
    huge_pages_exist,
    images_are_exact,
    daemons_tolerate_our_taint,
    variables_are_allowed,
    root_and_ipc_lock_go_together,
    paths_are_variables,
    jobs_are_ended_by_one_owner,
    names_fit,
    budgets_are_integers,
    services_publish_early,
    volumes_are_static,
)


def _pod(document: Manifest) -> dict[str, Any]:
    spec: dict[str, Any] = document.get("spec", {}).get("template", {}).get("spec", {})
    return spec


def _containers(document: Manifest) -> list[dict[str, Any]]:
    pod = _pod(document)
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


def _limits(container: Mapping[str, Any]) -> dict[str, Any]:
    limits: dict[str, Any] = container.get("resources", {}).get("limits", {})
    return limits
