"""Starting, stopping and breaking a local cluster: what the command and the tests use."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kubernetes import client, config

from ops.errors import CloudError
from ops.interrupts import ended_if_interrupted
from ops.local.kubernetes.garbage import OUT_OF_SERVICE
from ops.local.kubernetes.kinds import POD
from ops.local.kubernetes.layout import Layout
from ops.local.kubernetes.nodes import NodeSpec
from ops.local.kubernetes.objects import Object, is_finished_pod, is_terminating, name_of, namespace_of
from ops.local.kubernetes.settings import ClusterSettings
from ops.local.kubernetes.store import Store
from ops.local.node import processes
from ops.local.node.cgroups import Cgroups
from ops.local.node.kubelet import remove_everything
from ops.local.node.network import choose_network
from ops.local.node.runtime import Runtime
from ops.local.node.substitutions import Substitutions
from ops.local.state_files import UnreadableStateError, raise_if_refused

_START_S = 30.0
_STOP_S = 10.0


class ClusterError(CloudError):
    """The local cluster could not be started, reached or ended; the message says why and what to do."""


class LocalCluster:
    """The cluster of one environment. Every command may make its own object: all state is on disk."""

    def __init__(self, state_dir: Path) -> None:
        self._layout = Layout(state_dir.resolve())

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig file; valid while the cluster runs."""
        return self._layout.kubeconfig

    @property
    def environment(self) -> str:
        """The name that marks everything of this cluster on the machine."""
        return self._layout.environment

    def exists(self) -> bool:
        """There are objects, and perhaps pods, whether or not a server runs."""
        return self._layout.database.exists()

    def is_running(self) -> bool:
        """A server holds the environment's lock."""
        if not self._layout.lock.exists():
            return False
        with self._layout.lock.open("r+") as lock:
            try:  # shared: two that ask at once must not take each other for the server
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def start(
        self,
        nodes: Sequence[NodeSpec],
        kubernetes_version: str,
        substitutions: Substitutions,
        time_scale: float = 1.0,
    ) -> Path:
        """Starts the server if none runs; returns the kubeconfig. `time_scale` shortens Kubernetes' own waits.

        Raises UnreadableStateError for objects of another version, ClusterError if it does not start.
        """
        if self.is_running():
            self._wait_until_ready(None)
            self._add_missing(nodes)
            return self.kubeconfig
        self._layout.root.mkdir(parents=True, exist_ok=True)
        ClusterSettings(tuple(nodes), kubernetes_version, substitutions, time_scale).write(self._layout)
        self._launch()
        return self.kubeconfig

    def restart(self) -> Path:
        """Starts a server again that has died, with the settings of before."""
        if not self.is_answering():
            self._launch()
        return self.kubeconfig

    def is_answering(self) -> bool:
        """A server runs; waits for one that has only begun, which has not said yet where it listens.

        Raises ClusterError for one that does not answer.
        """
        if not self.is_running():
            return False
        try:
            self._wait_until_ready(None)
        except ClusterError:
            if self.is_running():
                raise
            return False
        return True

    def _launch(self) -> None:
        with self._layout.log.open("ab") as log:
            server = subprocess.Popen(
                [sys.executable, "-m", "ops.local.kubernetes.daemon", str(self._layout.state_dir)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[3],
                start_new_session=True,
            )
        with ended_if_interrupted(server):
            self._wait_until_ready(server)

    def _wait_until_ready(self, server: subprocess.Popen[bytes] | None) -> None:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self._answers():
                return
            if (server is None or server.poll() is not None) and not self.is_running():
                break
            time.sleep(0.05)
        raise_if_refused(server.poll() if server is not None else None, self._layout.log)
        tail = self._layout.log.read_text(errors="replace")[-2000:] if self._layout.log.exists() else ""
        raise ClusterError(f"the local Kubernetes did not start; its log {self._layout.log} ends with:\n{tail}")

    def _answers(self) -> bool:
        """The living server listens; an address left by a dead one may be somebody else's by now."""
        pid = self._server_pid()
        if pid is None or self._layout.last_address().get("pid") != pid:
            return False
        try:
            return self._request("GET", "/readyz", None)[0] == 200
        except OSError:
            return False

    def _request(self, method: str, path: str, body: Object | None) -> tuple[int, str]:
        """What is no part of Kubernetes goes over plain HTTP to the same server."""
        port = self._layout.last_address()["port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)
        try:
            connection.request(method, path, json.dumps(body or {}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def _server_pid(self) -> int | None:
        if not self._layout.pid.exists():
            return None
        pid = int(self._layout.pid.read_text() or 0)
        return pid if processes.runs(pid, "ops.local.kubernetes.daemon") else None

    def api_client(self) -> client.ApiClient:
        """A client of the official library, by the kubeconfig."""
        return config.new_client_from_config(str(self.kubeconfig))

    def substitutions(self) -> dict[str, str]:
        """What differs from a real node, in words: for the screen and run.json."""
        facts: dict[str, str] = self._layout.last_address()["substitutions"]
        return facts

    def stop(self) -> None:
        """Ends server and pods and takes away every process, namespace, group and folder; the objects too."""
        self._end_server()
        if not self._layout.root.exists():
            return
        pods = self._stored_pods()
        network = choose_network(self.environment, self._wanted_network())
        remove_everything(self.environment, self._layout.root, network, Cgroups.find(self.environment), pods)
        shutil.rmtree(self._layout.root)

    def _wanted_network(self) -> str | None:
        try:
            return ClusterSettings.read(self._layout).substitutions.network
        except UnreadableStateError:
            return None

    def _end_server(self) -> None:
        pid = self._server_pid()
        if pid is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            processes.send(pid, number)
            deadline = time.monotonic() + _STOP_S
            while time.monotonic() < deadline:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                if not processes.runs(pid, "ops.local.kubernetes.daemon"):
                    return
                time.sleep(0.02)
        raise ClusterError(f"the local Kubernetes (process {pid}) survives SIGKILL")

    def _stored_pods(self) -> list[Object]:
        if not self._layout.database.exists():
            return []
        try:
            store = Store(self._layout.database)
        except UnreadableStateError:  # their processes bear marks, their folders lie below: all goes without this
            return []
        try:
            return store.select(POD)
        finally:
            store.close()

    def kill_node(self, node: str) -> None:
        """The instance is gone: its processes with it, no word to anybody."""
        self._operate(node, "kill")

    def kill_pod(self, uid: str) -> None:
        """SIGKILL for everything that a pod runs; its node sees the containers end."""
        Runtime(self.environment, self._layout.pods, Cgroups.find(self.environment)).kill(uid)

    def cut_off(self, node: str) -> None:
        """The network to the node is gone; its processes go on."""
        self._operate(node, "cut-off")

    def pause(self, node: str) -> None:
        """The node hangs: every process stands still."""
        self._operate(node, "pause")

    def bring_back(self, node: str) -> None:
        """The node is there again, as after a reboot if it was killed, and takes pods again."""
        self._operate(node, "bring-back")
        kept = [t for t in self._taints(node) if t["key"] != OUT_OF_SERVICE]
        self._core().patch_node(node, {"spec": {"unschedulable": None, "taints": kept}})

    def _core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api_client())

    def _taints(self, node: str) -> list[Object]:
        plain: Object = client.ApiClient().sanitize_for_serialization(self._core().read_node(node))
        return plain["spec"].get("taints") or []

    def drain(self, node: str, timeout_s: float = 60.0) -> None:
        """Cordons the node and evicts its pods, as fast as disruption budgets allow."""
        core = self._core()
        core.patch_node(node, {"spec": {"unschedulable": True}})
        deadline = time.monotonic() + timeout_s
        while left := self._evictable(core, node):
            for pod in left:
                self._evict(core, pod)
            if time.monotonic() > deadline:
                names = ", ".join(p["metadata"]["name"] for p in left)
                raise ClusterError(f"node {node} is not drained after {timeout_s:.0f} s; still there: {names}")
            time.sleep(0.1)

    @staticmethod
    def _evictable(core: client.CoreV1Api, node: str) -> list[Object]:
        listed = core.list_pod_for_all_namespaces(field_selector=f"spec.nodeName={node}")
        pods: list[Object] = core.api_client.sanitize_for_serialization(listed.items)
        return [p for p in pods if not is_finished_pod(p)]

    @staticmethod
    def _evict(core: client.CoreV1Api, pod: Object) -> None:
        if is_terminating(pod):
            return
        name, namespace = name_of(pod), str(namespace_of(pod))
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace=namespace))
        try:
            core.create_namespaced_pod_eviction(name, namespace, body)
        except client.ApiException as error:
            if error.status not in (404, 429):  # gone meanwhile, or a budget says: not now
                raise

    def release(self, node: str) -> None:
        """Terminates the instance and says so by the out-of-service taint: frees the indexes of its pods."""
        self.kill_node(node)
        taint = {"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
        self._core().patch_node(node, {"spec": {"taints": [*self._taints(node), taint]}})

    def add_node(self, spec: NodeSpec) -> None:
        """A new instance joins."""
        self._post(f"/local/nodes/{spec.name}/add", spec.to_json())

    def remove_node(self, node: str) -> None:
        """The Node object goes, as when a cloud says that its instance no longer exists."""
        self.kill_node(node)
        self._core().delete_node(node)

    def _add_missing(self, nodes: Sequence[NodeSpec]) -> None:
        core = self._core()
        listed: list[Object] = core.api_client.sanitize_for_serialization(core.list_node().items)
        present = {name_of(n) for n in listed}
        for spec in nodes:
            if spec.name not in present:
                self.add_node(spec)

    def _operate(self, node: str, operation: str) -> None:
        self._post(f"/local/nodes/{node}/{operation}", None)

    def _post(self, path: str, body: Object | None) -> None:
        status, answer = self._request("POST", path, body)
        if status >= 300:
            raise ClusterError(f"{path}: {json.loads(answer)['message']}")
