"""The one background process of a local cluster: API server, controllers and kubelets. `python -m … STATE_DIR`."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import yaml
from werkzeug.serving import BaseWSGIServer

from ops.local.kubernetes import budgets, daemon_sets, endpoints, garbage, scheduler, volumes
from ops.local.kubernetes.api import Api
from ops.local.kubernetes.feature_gates import gates_of
from ops.local.kubernetes.jobs.controller import JobController
from ops.local.kubernetes.kinds import NAMESPACE, NODE
from ops.local.kubernetes.layout import Layout
from ops.local.kubernetes.logs import read_log
from ops.local.kubernetes.nodes import NodeMonitor, NodeSpec, TaintManager, node_object
from ops.local.kubernetes.objects import Object
from ops.local.kubernetes.server import HOST, ApiServer, listen
from ops.local.kubernetes.settings import ClusterSettings
from ops.local.kubernetes.store import Ref, Store
from ops.local.node.cgroups import Cgroups
from ops.local.node.kubelet import Kubelet
from ops.local.node.network import choose_network
from ops.local.state_files import UnreadableStateError, end_server

_LONGEST_TICK_S, _SHORTEST_TICK_S = 0.1, 0.01
_LOCK_S = 1.0
_SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class Daemon:
    """Everything of one cluster, in one process."""

    def __init__(self, layout: Layout) -> None:
        settings = ClusterSettings.read(layout)
        scale = settings.time_scale
        self._layout = layout
        self._tick_s = max(_SHORTEST_TICK_S, min(_LONGEST_TICK_S, scale / 5))
        self.store = Store(layout.database)
        substitutions = settings.substitutions
        network = choose_network(layout.environment, substitutions.network)
        cgroups = Cgroups.find(layout.environment)
        self.facts = substitutions.describe(network.mode, cgroups.describe())
        self._version = settings.kubernetes_version
        monitor = NodeMonitor(self.store, scale)
        self._register(settings.nodes)
        self._kubelet = kubelet = Kubelet(
            self.store, monitor, network, cgroups, substitutions, layout.root, layout.environment, scale
        )
        pod_collector = garbage.PodCollector(self.store, scale)
        collector = garbage.GarbageCollector(self.store)
        jobs = JobController(self.store, scale, gates_of(self._version))
        taints = TaintManager(self.store, scale)
        self._steps: list[Callable[[], None]] = [
            lambda: volumes.step(self.store),
            jobs.step,
            lambda: scheduler.step(self.store),
            kubelet.step,
            lambda: endpoints.step(self.store),
            lambda: budgets.step(self.store),
            lambda: daemon_sets.step(self.store),
            monitor.step,
            taints.step,
            pod_collector.step,
            collector.step,
            lambda: garbage.expire_jobs(self.store, scale),
        ]
        api = Api(self.store, self._version, network.service_range)
        self._application = ApiServer(api, self._logs, self._node_operation)
        self._stopping = threading.Event()

    def _register(self, nodes: Iterable[NodeSpec]) -> None:
        for name in _SYSTEM_NAMESPACES:
            self._ensure(Ref(NAMESPACE, None, name), _namespace(name))
        for spec in nodes:
            self._ensure(Ref(NODE, None, spec.name), node_object(spec, self._version, HOST))

    def _ensure(self, ref: Ref, obj: Object) -> None:
        if self.store.peek(ref) is None:
            self.store.create(obj)

    def _logs(self, ref: Ref, options: dict[str, str]) -> Iterator[bytes]:
        return read_log(self.store, self._layout.pods, ref, options)

    def _node_operation(self, node: str, operation: str, body: Object) -> Object:
        if operation == "add":
            self._register([NodeSpec.from_json(body)])
            return self.store.get(Ref(NODE, None, node))
        return self._kubelet.operate(node, operation)

    def run(self) -> None:
        """Serves until it is told to stop."""
        server = self._listen()
        self._announce(server.server_port)
        threading.Thread(target=server.serve_forever, name="api", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stopping.set())
        while not self._stopping.is_set():
            version = self.store.version
            for step in self._steps:
                self._guarded(step)
            if self.store.version == version:
                self.store.wait(version, self._tick_s)
        server.shutdown()
        self.store.close()

    @staticmethod
    def _guarded(step: Callable[[], None]) -> None:
        """One controller's mistake is written down and does not stop the others."""
        try:
            step()
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()

    def _listen(self) -> BaseWSGIServer:
        """The port of before, so that a kubeconfig stays valid; another one if somebody has taken it."""
        before = self._layout.last_address().get("port", 0)
        try:
            return listen(self._application, before)
        except (OSError, SystemExit):
            return listen(self._application, 0)

    def _announce(self, port: int) -> None:
        write_kubeconfig(self._layout.kubeconfig, self._layout.environment, f"http://{HOST}:{port}")
        facts = {"pid": os.getpid(), "port": port, "substitutions": self.facts}
        self._layout.write(self._layout.address, json.dumps(facts))


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "status": {"phase": "Active"}}


def write_kubeconfig(path: Path, environment: str, url: str) -> None:
    """A kubeconfig with one cluster and one context."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": environment, "cluster": {"server": url}}],
        "users": [{"name": environment, "user": {}}],
        "contexts": [{"name": environment, "context": {"cluster": environment, "user": environment}}],
        "current-context": environment,
    }
    Layout.write(path, yaml.safe_dump(config))


def _has_locked(lock: IO[str]) -> bool:
    """False if a server holds it; whoever only looks whether one runs does so for a moment."""
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def main() -> None:
    """Holds the environment's lock for as long as it lives."""
    layout = Layout(Path(sys.argv[1]))
    with layout.lock.open("w") as lock:
        if not _has_locked(lock):
            sys.exit(f"a server for {layout.root} is running already")
        layout.pid.write_text(str(os.getpid()))
        try:
            daemon = Daemon(layout)
        except UnreadableStateError as error:
            end_server(error)
        daemon.run()


if __name__ == "__main__":
    main()
