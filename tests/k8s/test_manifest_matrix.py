"""Every manifest of every environment: valid, within the namespace's own limits, placed where it must be."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes_validate import validate

from environments.environment import Environment
from k8s import rules
from k8s.manifest import Manifest
from k8s.names import POOL_GPU, POOL_LABEL, POOL_SYSTEM
from k8s.quantities import size_bytes

pytestmark = pytest.mark.unit


def of_kind(documents: list[Manifest], kind: str) -> list[Manifest]:
    return [item for item in documents if item["kind"] == kind]


def pods(documents: list[Manifest]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Name, pod spec and number of every Job's pods."""
    for job in of_kind(documents, "Job"):
        yield job["metadata"]["name"], job["spec"]["template"]["spec"], job["spec"].get("parallelism", 1)


def test_is_strictly_valid_for_the_environments_kubernetes(
    any_environment: Environment, documents: list[Manifest]
) -> None:
    for document in documents:
        if document["kind"] != "SecretProviderClass":  # a custom resource
            _validate_once(any_environment.kubernetes_version, json.dumps(document))


@functools.cache
def _validate_once(version: str, document: str) -> None:
    """Most objects are the same in many environments."""
    validate(json.loads(document), version, strict=True)


def test_breaks_no_rule(any_environment: Environment, documents: list[Manifest]) -> None:
    rules.check(any_environment, documents)


def test_pods_pass_the_limit_range_of_their_namespace(documents: list[Manifest]) -> None:
    (limit_range,) = of_kind(documents, "LimitRange")
    (defaults,) = limit_range["spec"]["limits"]
    for name, pod, _ in pods(documents):
        for container in pod["containers"]:
            limits = {**defaults["default"], **container["resources"].get("limits", {})}
            requests = {**defaults["defaultRequest"], **container["resources"].get("requests", {})}
            for resource in limits.keys() & requests.keys():
                assert _amount(requests[resource]) <= _amount(limits[resource]), (name, resource)


def _amount(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else size_bytes(quantity)


def test_a_run_fits_the_quota_exactly(documents: list[Manifest]) -> None:
    (quota,) = of_kind(documents, "ResourceQuota")
    for resource in ("nvidia.com/gpu", "vpc.amazonaws.com/efa"):
        asked = sum(
            number * int(container["resources"]["limits"].get(resource, 0))
            for _, pod, number in pods(documents)
            for container in pod["containers"]
        )
        assert asked == int(quota["spec"]["hard"][f"requests.{resource}"])


def test_gpus_are_asked_for_on_gpu_nodes_and_nothing_else_runs_there(
    any_environment: Environment, documents: list[Manifest]
) -> None:
    for name, pod, _ in pods(documents):
        wants_gpus = any("nvidia.com/gpu" in item["resources"]["limits"] for item in pod["containers"])
        pool = pod["nodeSelector"][POOL_LABEL]
        assert pool == (POOL_GPU if wants_gpus else POOL_SYSTEM), name
        if not wants_gpus:
            zone = pod["nodeSelector"]["topology.kubernetes.io/zone"]
            assert zone == any_environment.availability_zone
    for daemon in of_kind(documents, "DaemonSet"):
        assert daemon["spec"]["template"]["spec"]["nodeSelector"] == {POOL_LABEL: POOL_GPU}


def test_no_pod_has_a_token_or_waits_300_s_on_a_dead_node(documents: list[Manifest]) -> None:
    for name, pod, _ in pods(documents):
        assert pod["automountServiceAccountToken"] is False, name
        seconds = {item["key"]: item.get("tolerationSeconds") for item in pod["tolerations"]}
        assert seconds["node.kubernetes.io/not-ready"] == seconds["node.kubernetes.io/unreachable"] == 30, name


def test_every_object_is_where_it_belongs(any_environment: Environment, documents: list[Manifest]) -> None:
    cluster_wide = {"Namespace", "PersistentVolume", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}
    for document in documents:
        expected = "kube-system" if document["kind"] == "DaemonSet" else any_environment.namespace
        namespace = document["metadata"].get("namespace")
        assert namespace == (None if document["kind"] in cluster_wide else expected), document["metadata"]


def test_secrets_are_mounted_only_where_there_are_some(
    any_environment: Environment, documents: list[Manifest]
) -> None:
    mounted = {
        volume["csi"]["volumeAttributes"]["secretProviderClass"]
        for _, pod, _ in pods(documents)
        for volume in pod["volumes"]
        if volume.get("csi", {}).get("driver") == "secrets-store.csi.k8s.io"
    }
    assert mounted == {item["metadata"]["name"] for item in of_kind(documents, "SecretProviderClass")}
    assert bool(mounted) == bool(any_environment.secrets)
