"""Pods as processes: the same in network namespaces and on loopback addresses."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from ops.local.kubernetes.nodes import NodeSpec
from ops.local.node import processes

pytestmark = pytest.mark.integration

SERVE = """
exec python -I -S -c "
import socket
s = socket.create_server(('', PORT))
print('up', flush=True)
while True:
    c, a = s.accept()
    c.sendall(b'NAME')
    c.close()
"
"""
ASK = """
python -I -S -c "
import socket, sys, time
deadline = time.monotonic() + 30
while True:
    try:
        print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).recv(100).decode(), flush=True)
        break
    except OSError as error:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.05)
" $(HOST) $(PORT)
"""
HELD = {"envFrom": [{"configMapRef": {"name": "late"}}]}
"""A container that does not start before this is there."""


def _serve(name: str, port: int) -> str:
    return SERVE.replace("PORT", str(port)).replace("NAME", name)


def _asks(endpoint: str) -> Any:
    """A container that connects to `host:port` from its environment."""
    script = ASK.replace("$(HOST)", "${ENDPOINT%:*}").replace("$(PORT)", "${ENDPOINT##*:}")
    return {"command": ["sh", "-c", script], "env": [{"name": "ENDPOINT", "value": endpoint}]}


def test_variables_files_and_arguments_come_from_the_manifest(pods: Any) -> None:
    """https://kubernetes.io/docs/tasks/inject-data-application/"""
    meta = {"name": "c", "namespace": pods.namespace}
    pods.core.create_namespaced_config_map(pods.namespace, {"metadata": meta, "data": {"A": "a", "f.txt": "file"}})
    secret = base64.b64encode(b"hush").decode()
    pods.core.create_namespaced_secret(pods.namespace, {"metadata": meta, "data": {"key": secret}})
    field = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    environment = [
        {"name": "IP"} | field,
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "c", "key": "key"}}},
        {"name": "ABSENT", "valueFrom": {"secretKeyRef": {"name": "x", "key": "key", "optional": True}}},
        {"name": "CONFIG", "value": "/etc/config"},
        {"name": "FILE", "value": "$(CONFIG)/f.txt"},
    ]
    container = {
        "command": [
            "sh",
            "-c",
            'echo $0 "$1" $LABEL $CPU $KEY-$ABSENT $A $HOSTNAME; cat $FILE; echo; echo $NODE $IP',
        ],
        "args": ["$(LABEL)-$$(LABEL)", "$(UNKNOWN)"],
        "env": environment,
        "envFrom": [{"configMapRef": {"name": "c"}}],
        "resources": {"limits": {"cpu": "1500m"}},
        "volumeMounts": [{"name": "c", "mountPath": "/etc/config"}],
    }
    volumes = [{"name": "c", "configMap": {"name": "c"}}]
    lines = pods.result("p", "", container=container, labels={"app": "x"}, volumes=volumes).splitlines()
    assert lines[0] == "x-$(LABEL) $(UNKNOWN) x 2 hush- a p"
    assert lines[1] == "file"
    pod = pods.get("p")
    assert lines[2] == f"{pod['spec']['nodeName']} {pod['status']['podIP']}"


def test_nothing_of_the_callers_environment_gets_into_a_pod(pods: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "PYTEST_CURRENT_TEST" in os.environ
    names = {line.partition("=")[0] for line in pods.result("p", "env").splitlines()}
    assert names <= {"PATH", "HOME", "TMPDIR", "HOSTNAME", "LANG", "STEADFAST_POD", "PWD", "SHLVL", "_"}


def test_a_missing_config_map_holds_the_pod_until_it_is_there(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/configuration/configmap/"""
    source = [{"configMapRef": {"name": "late"}}]
    pods.run("p", "echo $A", container={"envFrom": source})

    def waiting() -> Any:
        statuses = pods.get("p")["status"].get("containerStatuses") or [{}]
        return statuses[0].get("state", {}).get("waiting", {}).get("message")

    assert pods.until(waiting) == 'configmap "late" not found'
    pods.core.create_namespaced_config_map(pods.namespace, {"metadata": {"name": "late"}, "data": {"A": "now"}})
    assert pods.end("p")["exitCode"] == 0
    assert pods.log("p") == "now\n"


def test_exit_codes_signals_and_termination_messages(pods: Any) -> None:
    """https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/"""
    message = {"env": [{"name": "LOG", "value": "/dev/termination-log"}]}
    pods.run("says", "echo because > $LOG; exit 3", container=message)
    pods.run("killed", "kill -9 $$$$")  # $$ is an escape in manifests
    pods.run("log", "echo last words; exit 4", container={"terminationMessagePolicy": "FallbackToLogsOnError"})
    pods.run("absent", "", container={"command": ["/no/such/program"]})
    said = pods.end("says")
    assert (said["exitCode"], said["reason"], said["message"]) == (3, "Error", "because\n")
    assert pods.end("killed")["exitCode"] == 137
    assert pods.end("log")["message"] == "last words\n"
    absent = pods.end("absent")
    assert (absent["exitCode"], absent["reason"]) == (128, "StartError")
    assert "/no/such/program" in absent["message"]


def test_grace_then_sigkill_and_what_detached_goes_too(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination"""
    stubborn = "setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done'"
    script = f"trap 'echo asked' TERM; {stubborn} & while :; do sleep 0.05; done"
    pods.run("p", script)
    pod = pods.running("p")
    mark = processes.mark_of(pods.cluster.environment, pod["metadata"]["uid"])
    pods.until(lambda: len(list(processes.marked(mark))) >= 3)
    asked_s = time.monotonic()
    pods.core.delete_namespaced_pod("p", pods.namespace)
    pods.until(lambda: "asked" in pods.log("p"))
    pods.until(lambda: not pods.all())
    assert 0.9 <= time.monotonic() - asked_s < 4.0
    pods.until(lambda: not list(processes.marked(mark)))


def test_a_pod_deleted_while_it_starts_is_asked_when_it_can_hear(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination"""
    pods.run("p", "exec sleep 600", container=HELD, terminationGracePeriodSeconds=600)
    uid = pods.get("p")["metadata"]["uid"]
    log = pods.cluster.kubeconfig.parent / "pods" / uid / "main" / "0" / "log"
    log.parent.mkdir(parents=True)
    os.mkfifo(log)  # opening it is the last but one thing before the command: there the start waits for a reader
    pods.core.create_namespaced_config_map(pods.namespace, {"metadata": {"name": "late"}, "data": {}})
    mark = processes.mark_of(pods.cluster.environment, uid)
    pods.until(lambda: len(list(processes.marked(mark))) == 2)  # the shim and what will be the command
    pods.core.delete_namespaced_pod("p", pods.namespace)
    pods.until(lambda: pods.events("p", "Killing"))
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    pods.until(lambda: not pods.all())
    os.close(reader)


def test_a_container_takes_its_descendants_with_it(pods: Any) -> None:
    pods.run("p", "setsid sleep 300 & sleep 0.1; exit 5")
    assert pods.end("p")["exitCode"] == 5
    mark = processes.mark_of(pods.cluster.environment, pods.get("p")["metadata"]["uid"])
    assert list(processes.marked(mark)) == []


def test_memory_limit_is_real(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/"""
    if "enforced" not in pods.cluster.substitutions()["resources"].split(";")[0].replace("not enforced", ""):
        pytest.skip("no writable memory cgroup")
    eat = 'exec python -I -S -c "b = []\nwhile True: b.append(bytearray(4 << 20))"'
    pods.run("p", eat, container={"resources": {"limits": {"memory": "64Mi"}}})
    ended = pods.end("p")
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_shared_memory_has_its_own_folder_and_its_size(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/storage/volumes/#emptydir"""
    if os.geteuid() != 0:
        pytest.skip("a size limit needs the right to mount")
    container = {
        "env": [{"name": "SHM", "value": "/dev/shm"}],
        "volumeMounts": [{"name": "m", "mountPath": "/dev/shm"}],
    }
    volumes = [{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]
    script = "echo $SHM; head -c 500000 /dev/zero > $SHM/a && ! head -c 900000 /dev/zero > $SHM/b"
    written = pods.result("p", script, container=container, volumes=volumes).splitlines()
    assert written[0] == f"/dev/shm/steadfast-{pods.cluster.environment}-p/m"
    assert "No space left" in written[1]
    assert not Path(written[0]).parent.exists()


def test_init_containers_then_a_sidecar_beside_the_main_one(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/"""
    shared = {"volumeMounts": [{"name": "v", "mountPath": "/v"}], "env": [{"name": "V", "value": "/v"}]}
    common = {"image": "none"} | shared
    init = [
        common | {"name": "first", "command": ["sh", "-c", "echo first > $V/order"]},
        common
        | {"name": "side", "restartPolicy": "Always", "command": ["sh", "-c", "touch $V/side; exec sleep 300"]},
        common | {"name": "second", "command": ["sh", "-c", "echo second >> $V/order"]},
    ]
    script = "while [ ! -e $V/side ]; do sleep 0.05; done; cat $V/order"
    volumes: list[Any] = [{"name": "v", "emptyDir": {}}]
    more = {"initContainers": init, "volumes": volumes, "shareProcessNamespace": True}
    assert pods.result("p", script, container=shared, **more) == "first\nsecond\n"
    assert pods.get("p")["status"]["phase"] == "Succeeded"
    statuses = {s["name"]: s["state"] for s in pods.get("p")["status"]["initContainerStatuses"]}
    assert statuses["side"]["terminated"]["exitCode"] == 143


def test_a_failing_init_container_fails_the_pod(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/init-containers/"""
    init = [{"name": "i", "image": "none", "command": ["sh", "-c", "exit 9"]}]
    pods.run("p", "echo never", initContainers=init)
    pods.until(lambda: pods.phase("p") == "Failed")
    assert "terminated" not in pods.get("p")["status"]["containerStatuses"][0]["state"]


def test_on_failure_restarts_at_once_and_then_with_back_off(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-restarts"""
    pods.run("p", "echo run; exit 1", restartPolicy="OnFailure")

    loop = {"waiting": {"reason": "CrashLoopBackOff"}}

    def status() -> Any:
        return (pods.get("p")["status"].get("containerStatuses") or [{}])[0]

    crashed = pods.until(lambda: s if (s := status()).get("state", {}) == loop else None)
    assert crashed["lastState"]["terminated"]["exitCode"] == 1
    address = pods.get("p")["status"]["podIP"]
    pods.until(lambda: status().get("restartCount", 0) >= 3)
    assert pods.get("p")["status"]["podIP"] == address
    previous = pods.core.read_namespaced_pod_log("p", pods.namespace, previous=True)
    assert previous == "run\n"
    pods.core.delete_namespaced_pod("p", pods.namespace)


def test_pods_reach_each_other_by_their_addresses(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/services-networking/#the-kubernetes-network-model"""
    port = free_port()
    pods.run("server", _serve("here", port))
    address = pods.running("server")["status"]["podIP"]
    assert pods.result("asker", "", container=_asks(f"{address}:{port}")) == "here\n"


def test_a_headless_service_names_its_pods(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-hostname-and-subdomain-fields"""
    port = free_port()
    spec = {"clusterIP": "None", "selector": {"app": "x"}, "publishNotReadyAddresses": True}
    pods.core.create_namespaced_service(pods.namespace, {"metadata": {"name": "set"}, "spec": spec})
    pods.run("server", _serve("here", port), labels={"app": "x"}, hostname="server-0", subdomain="set")
    pods.running("server")
    pods.until(lambda: pods.core.read_namespaced_endpoints("set", pods.namespace).subsets)
    full = f"server-0.set.{pods.namespace}.svc.cluster.local:{port}"
    assert pods.result("asker", "", container=_asks(full)) == "here\n"


def test_a_name_without_an_address_is_answered_at_once(pods: Any) -> None:
    """torch's TCPStore asks for IPv6 first, and a question that nobody answers takes glibc 5 s."""
    script = (
        "import socket, time; began = time.monotonic()\n"
        "try: socket.getaddrinfo('nobody.training.svc.cluster.local', 1, socket.AF_INET6)\n"
        "except socket.gaierror: print(time.monotonic() - began < 2)"
    )
    if pods.mode != "namespaces":
        pytest.skip("on loopback addresses a pod asks as the machine does")
    assert pods.result("asker", f'exec python -I -S -c "{script}"') == "True\n"


def test_a_pod_may_be_named_before_it_exists(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-hostname-and-subdomain-fields"""
    port = free_port()
    spec = {"clusterIP": "None", "selector": {"app": "x"}, "publishNotReadyAddresses": True}
    pods.core.create_namespaced_service(pods.namespace, {"metadata": {"name": "set"}, "spec": spec})
    endpoint = f"server-0.set.{pods.namespace}.svc.cluster.local:{port}"
    pods.run("asker", "", container=_asks(endpoint))
    pods.running("asker")
    pods.run("server", _serve("late", port), labels={"app": "x"}, hostname="server-0", subdomain="set")
    assert pods.end("asker")["exitCode"] == 0
    assert pods.log("asker") == "late\n"


def test_a_killed_node_comes_back_without_its_containers(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/architecture/nodes/"""
    label = {"only": pods.namespace}
    pods.cluster.add_node(NodeSpec(pods.namespace, label, (), {"cpu": "8", "memory": "8Gi"}))
    pods.run("p", "exec sleep 300", nodeSelector=label)
    pod = pods.running("p")
    pods.cluster.kill_node(pods.namespace)
    mark = processes.mark_of(pods.cluster.environment, pod["metadata"]["uid"])
    assert list(processes.marked(mark)) == []
    assert pods.phase("p") == "Running"
    pods.cluster.bring_back(pods.namespace)
    assert pods.end("p")["exitCode"] == 137
    pods.cluster.remove_node(pods.namespace)


def test_a_service_keeps_its_address_while_its_pod_is_replaced(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/services-networking/service/"""
    port = free_port()
    spec = {
        "selector": {"app": "store"},
        "publishNotReadyAddresses": True,
        "ports": [{"port": port, "targetPort": port}],
    }
    made = pods.core.create_namespaced_service(pods.namespace, {"metadata": {"name": "control"}, "spec": spec})
    endpoint = f"control.{pods.namespace}.svc.cluster.local:{port}"
    pods.run("one", _serve("one", port), labels={"app": "store"})
    first = pods.running("one")["status"]["podIP"]
    # One client that outlives the first store, as a launcher does: the name is read once, at its start.
    twice = ASK.replace("$(HOST)", "${ENDPOINT%:*}").replace("$(PORT)", "${ENDPOINT##*:}")
    script = f"{twice}\nwhile [ ! -e $TMPDIR/go ]; do sleep 0.05; done\n{twice}"
    pods.run("client", "", container=_asks(endpoint) | {"command": ["sh", "-c", script]})
    pods.until(lambda: pods.log("client") == "one\n" if pods.phase("client") == "Running" else None)
    pods.core.delete_namespaced_pod("one", pods.namespace)
    pods.until(lambda: [p["metadata"]["name"] for p in pods.all()] == ["client"])
    pods.run("two", _serve("two", port), labels={"app": "store"})
    assert pods.running("two")["status"]["podIP"] != first
    uid = pods.get("client")["metadata"]["uid"]
    (Path("/tmp") / f"steadfast-{pods.cluster.environment[-6:]}-{uid[:8]}" / "go").touch()
    assert pods.end("client")["exitCode"] == 0
    assert pods.log("client") == "one\ntwo\n"
    assert pods.core.read_namespaced_service("control", pods.namespace).spec.cluster_ip == made.spec.cluster_ip


def test_a_node_that_is_cut_off_answers_nobody_and_is_not_dead(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/architecture/nodes/"""
    port = free_port()
    label = {"only": pods.namespace}
    node = pods.namespace
    pods.cluster.add_node(NodeSpec(node, label, (), {"cpu": "8", "memory": "8Gi"}))
    pods.run("server", _serve("here", port), nodeSelector=label)
    pod = pods.running("server")
    address, mark = pod["status"]["podIP"], processes.mark_of(pods.cluster.environment, pod["metadata"]["uid"])
    pods.until(lambda: pods.log("server") == "up\n")
    pods.cluster.cut_off(node)
    code = f"import socket; c = socket.create_connection(('{address}', {port}), 1); c.settimeout(1); c.recv(1)"
    pods.run("asker", f'exec python -I -S -c "{code}"', nodeSelector={"kubernetes.io/hostname": "node-0"})
    assert pods.end("asker")["exitCode"] == 1
    assert "timed out" in pods.log("asker") or "No route" in pods.log("asker")
    assert list(processes.marked(mark))
    pods.cluster.bring_back(node)
    assert pods.result("again", "", container=_asks(f"{address}:{port}")) == "here\n"
    pods.cluster.remove_node(node)


def test_a_pod_that_fits_nowhere_says_why(pods: Any) -> None:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/kube-scheduler/"""
    node = NodeSpec(
        pods.namespace,
        {"pool": pods.namespace},
        ({"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"},),
        {"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": "1"},
    )
    pods.cluster.add_node(node)
    gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    toleration = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    pods.run("untolerated", "sleep 60", container=gpu, nodeSelector={"pool": pods.namespace})
    pods.run("first", "sleep 60", container=gpu, nodeSelector={"pool": pods.namespace}, tolerations=toleration)
    pods.running("first")
    pods.run("second", "sleep 60", container=gpu, nodeSelector={"pool": pods.namespace}, tolerations=toleration)

    def reason(name: str) -> str:
        found = [c for c in pods.get(name)["status"].get("conditions") or [] if c["type"] == "PodScheduled"]
        return str(found[0].get("message", "")) if found else ""

    pods.until(lambda: "untolerated taint {nvidia.com/gpu: true}" in reason("untolerated"))
    pods.until(lambda: "Insufficient nvidia.com/gpu" in reason("second"))
    pods.core.delete_namespaced_pod("first", pods.namespace)
    pods.running("second")
    for name in ("second", "untolerated"):
        pods.core.delete_namespaced_pod(name, pods.namespace)
    pods.cluster.remove_node(pods.namespace)


def test_one_pods_trouble_is_told_and_none_of_the_others_business(pods: Any) -> None:
    """https://kubernetes.io/docs/tasks/debug/debug-application/debug-pods/"""
    volumes = [{"name": "v", "hostPath": {"path": "/proc/version"}}]
    mount = {"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "not/possible"}]}
    pods.run("bad", "true", container=mount, volumes=volumes)
    assert pods.result("good", "echo fine") == "fine\n"

    pods.until(lambda: pods.events("bad", "FailedSync"))
    pods.core.delete_namespaced_pod("bad", pods.namespace)
    pods.until(lambda: [p["metadata"]["name"] for p in pods.all()] == ["good"])
