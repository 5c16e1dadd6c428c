"""What a cluster holds before its first run."""

from __future__ import annotations

from typing import Any

import cdk8s
import pytest

from environments.environment import Environment
from environments.instance_types import INSTANCE_TYPES
from k8s.cluster_charts import LustreVolume, cluster_charts
from k8s.images import EKS_ACCOUNTS, efa_device_plugin, eks_registry, nvidia_device_plugin
from k8s.manifest import Manifest, manifests
from k8s.storage import layout_job

pytestmark = pytest.mark.unit
VOLUME = LustreVolume("fs-0123456789abcdef0", "fs-0123.fsx.us-east-1.amazonaws.com", "abcdefgh")


def charts(environment: Environment) -> dict[str, list[Manifest]]:
    return {chart.node.id: manifests([chart]) for chart in cluster_charts(cdk8s.App(), environment, VOLUME)}


def named(documents: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {item["metadata"]["name"]: item for item in documents if item["kind"] == kind}


def test_the_order_puts_the_namespace_before_what_is_in_it(environment: Environment) -> None:
    assert list(charts(environment)) == ["device-plugins", "namespace", "access", "storage"]
    made = cluster_charts(cdk8s.App(), environment, VOLUME)
    assert [chart.node.dependencies[0].node.id for chart in made[1:]] == [chart.node.id for chart in made[:-1]]


def test_the_volume_is_the_claims_and_only_the_claims(environment: Environment) -> None:
    """Reports: fsx-csi#382, fsx-csi#433: provisioning from a claim makes file systems until the subnet is full."""
    documents = charts(environment)["storage"]
    (volume,) = named(documents, "PersistentVolume").values()
    (claim,) = named(documents, "PersistentVolumeClaim").values()
    assert volume["spec"]["csi"] == {
        "driver": "fsx.csi.aws.com",
        "volumeHandle": VOLUME.file_system_id,
        "volumeAttributes": {"dnsname": VOLUME.dns_name, "mountname": VOLUME.mount_name},
    }
    assert volume["spec"]["mountOptions"] == ["flock", "noatime"]
    assert volume["spec"]["claimRef"] == {"namespace": "training", "name": claim["metadata"]["name"]}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    for item in (volume, claim):
        assert (item["spec"]["storageClassName"], item["spec"]["accessModes"]) == ("", ["ReadWriteMany"])
    assert volume["spec"]["capacity"]["storage"] == claim["spec"]["resources"]["requests"]["storage"] == "4800Gi"


def test_the_nvidia_plugin_leaves_efas_device_files_alone(environment: Environment) -> None:
    daemon = named(charts(environment)["device-plugins"], "DaemonSet")["nvidia-device-plugin"]
    (container,) = daemon["spec"]["template"]["spec"]["containers"]
    assert {"name": "MOFED_ENABLED", "value": "false"} in container["env"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/var/lib/kubelet/device-plugins"}


@pytest.mark.parametrize("name", INSTANCE_TYPES)
def test_plugins_run_on_our_nodes_whatever_the_instance_type(make_environment: Any, name: str) -> None:
    """Reports: aws-do-eks#56, a list of types older than the type; k8s-device-plugin#1934, labels of a discovery
    that tolerates other taints; kubernetes-on-aws#8881, a plug-in on a node without the devices."""
    for daemon in named(charts(make_environment(instance_type=name))["device-plugins"], "DaemonSet").values():
        pod = daemon["spec"]["template"]["spec"]
        assert pod["nodeSelector"] == {"steadfast/pool": "gpu"}
        assert "affinity" not in pod


@pytest.mark.parametrize(
    ("region", "account"), [("us-east-1", "602401143452"), ("me-south-1", EKS_ACCOUNTS["me-south-1"])]
)
def test_eks_images_come_from_the_region(make_environment: Any, region: str, account: str) -> None:
    environment = make_environment(region=region, availability_zone=f"{region}a")
    assert efa_device_plugin(environment).startswith(f"{account}.dkr.ecr.{region}.amazonaws.com/eks/")
    assert eks_registry(region) in efa_device_plugin(environment)


def test_without_a_way_out_every_image_is_in_a_registry_of_amazons(make_environment: Any) -> None:
    private = make_environment(account="123456789012", network={"egress": "endpoints"})
    images = [
        container["image"]
        for group in charts(private).values()
        for document in group
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    ]
    assert images
    assert all(".dkr.ecr.us-east-1.amazonaws.com/" in image for image in images)
    assert nvidia_device_plugin(private).startswith(
        "123456789012.dkr.ecr.us-east-1.amazonaws.com/research/trainer:"
    )


def test_without_a_way_out_the_account_must_be_known(make_environment: Any) -> None:
    with pytest.raises(ValueError, match="account: must be given"):
        charts(make_environment(network={"egress": "endpoints"}))


def test_researchers_run_things_in_one_namespace_and_read_nodes(environment: Environment) -> None:
    documents = charts(environment)["access"]
    (role,) = named(documents, "Role").values()
    verbs = {resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}
    assert {"create", "delete", "patch"} <= verbs["jobs"]
    assert verbs["pods/log"] == {"get", "list", "watch"}
    assert not {"secrets", "pods/exec", "serviceaccounts", "roles"} & verbs.keys()
    (cluster_role,) = named(documents, "ClusterRole").values()
    assert {verb for rule in cluster_role["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    groups = [subject["name"] for item in documents if "Binding" in item["kind"] for subject in item["subjects"]]
    assert groups == ["steadfast-researchers"] * 2


def test_nothing_goes_in_or_out_of_the_namespace_but_dns(environment: Environment) -> None:
    policies = named(charts(environment)["namespace"], "NetworkPolicy")
    assert policies["deny-all"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    (egress,) = policies["allow-dns"]["spec"]["egress"]
    assert {port["port"] for port in egress["ports"]} == {53}


@pytest.mark.parametrize(("root", "level"), [(False, "baseline"), (True, "privileged")])
def test_root_needs_a_namespace_that_allows_it(make_environment: Any, root: bool, level: str) -> None:
    (namespace,) = named(charts(make_environment(security={"root": root}))["namespace"], "Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == level


def test_a_smaller_quota_is_the_files(make_environment: Any) -> None:
    environment = make_environment(access={"quota": {"gpus": 8, "jobs": 2}})
    (quota,) = named(charts(environment)["namespace"], "ResourceQuota").values()
    assert quota["spec"]["hard"]["requests.nvidia.com/gpu"] == "8"
    assert quota["spec"]["hard"]["count/jobs.batch"] == "2"


def test_the_layout_job_gets_a_new_name_when_it_changes(make_environment: Any) -> None:
    first, same = layout_job(make_environment()), layout_job(make_environment(nodes=4))
    moved = layout_job(make_environment(availability_zone="us-east-1c"))
    assert first["metadata"]["name"] == same["metadata"]["name"] != moved["metadata"]["name"]
