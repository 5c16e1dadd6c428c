"""A cluster in each network mode, and pods made from a few fields."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.testing import running_cluster

SCALE = 0.05


class Pods:
    """Pods in a namespace of their own."""

    def __init__(self, cluster: LocalCluster, namespace: str, mode: str) -> None:
        self.cluster, self.namespace, self.mode = cluster, namespace, mode
        self.api: Any = cluster.api_client()
        self.core: Any = client.CoreV1Api(self.api)
        self.core.create_namespace({"metadata": {"name": namespace}})

    def run(self, name: str, script: str, *, container: Any = None, labels: Any = None, **spec: Any) -> None:
        """A pod of one shell script; `python` in it is the project's."""
        main = {"name": "main", "image": "none", "command": ["sh", "-c", script]} | (container or {})
        pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main]} | spec
        body = {"metadata": {"name": name, "labels": labels or {}}, "spec": pod}
        self.core.create_namespaced_pod(self.namespace, body)

    def get(self, name: str) -> Any:
        """The pod as plain fields."""
        return self.api.sanitize_for_serialization(self.core.read_namespaced_pod(name, self.namespace))

    def phase(self, name: str) -> str:
        """status.phase"""
        return str(self.get(name)["status"]["phase"])

    def until(self, what: Callable[[], Any], limit_s: float = 20.0) -> Any:
        """Polls until `what` gives something."""
        deadline = time.monotonic() + limit_s
        while not (got := what()):
            states = [p["status"] for p in self.all()]
            assert time.monotonic() < deadline, json.dumps(states, indent=1)
            time.sleep(0.02)
        return got

    def all(self) -> Any:
        """Every pod."""
        return self.api.sanitize_for_serialization(self.core.list_namespaced_pod(self.namespace).items)

    def events(self, name: str, reason: str) -> list[str]:
        """What was said of a pod, for one reason."""
        events = self.core.list_namespaced_event(self.namespace, field_selector=f"reason={reason}").items
        return [e.message for e in events if e.involved_object.name == name]

    def end(self, name: str) -> Any:
        """Waits for the pod's end; the terminated state of its first container."""
        self.until(lambda: self.phase(name) in ("Succeeded", "Failed"))
        return self.get(name)["status"]["containerStatuses"][0]["state"]["terminated"]

    def running(self, name: str) -> Any:
        """Waits until it runs."""
        self.until(lambda: self.phase(name) == "Running")
        return self.get(name)

    def log(self, name: str, container: str = "main") -> str:
        """What it has written."""
        return str(self.core.read_namespaced_pod_log(name, self.namespace, container=container))

    def result(self, name: str, script: str, **more: Any) -> str:
        """Runs a script to its good end and returns what it wrote."""
        self.run(name, script, **more)
        ended = self.end(name)
        assert ended["exitCode"] == 0, self.log(name)
        return self.log(name)


@pytest.fixture(scope="session", params=["namespaces", "loopback"])
def mode_and_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, LocalCluster]]:
    if request.param == "namespaces" and os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    folder: Path = tmp_path_factory.mktemp("node") / request.param
    with running_cluster(folder, time_scale=SCALE, network=request.param) as cluster:
        yield request.param, cluster


@pytest.fixture
def pods(mode_and_cluster: tuple[str, LocalCluster], request: pytest.FixtureRequest) -> Pods:
    mode, cluster = mode_and_cluster
    plain = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    return Pods(cluster, plain[:60].strip("-"), mode)
