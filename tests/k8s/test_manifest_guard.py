"""What no manifest may hold, whoever made it."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
import cdk8s
import pytest

from environments.environment import Environment
from k8s.cluster_charts import LustreVolume, cluster_charts
from k8s.manifest import InvalidManifestError, chart_of, manifests
from k8s.run_spec import RunSpec
from k8s.training_job import run_manifests

pytestmark = pytest.mark.unit


def config_map(**data: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": data}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("before ${Token[TOKEN.56]} after", "data.key holds a CDK token"),
        ("#{Token[TOKEN.7]}", "data.key holds a CDK token"),
        ("", "data.key is empty"),
    ],
)
def test_refuses_what_kubernetes_would_take_silently(value: str, said: str) -> None:
    with pytest.raises(InvalidManifestError, match="ConfigMap/settings") as caught:
        manifests([chart_of(cdk8s.App(), "chart", [config_map(key=value)])])
    assert said in str(caught.value)


def test_refuses_null_in_a_list() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [None]}}
    with pytest.raises(InvalidManifestError, match=r"spec\.containers\.0 is null"):
        manifests([chart_of(cdk8s.App(), "chart", [pod])])


def test_names_every_problem_at_once() -> None:
    with pytest.raises(InvalidManifestError) as caught:
        manifests([chart_of(cdk8s.App(), "chart", [config_map(one="", two="${Token[a.1]}")])])
    assert len(caught.value.problems) == 2


def test_a_run_is_guarded_however_its_manifests_are_made(environment: Environment) -> None:
    run = RunSpec("r", 1, "registry/trainer@sha256:" + "0" * 64, labels={"team": ""})
    with pytest.raises(InvalidManifestError, match=r"Job/r-1: metadata\.labels\.team is empty"):
        run_manifests(environment, run)


def test_keeps_empty_selectors_and_classes_and_adds_nothing() -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "fsx", "namespace": "training", "labels": {"a": "b"}},
        "spec": {"storageClassName": "", "selector": {}, "numbers": [1, True]},
    }
    assert manifests([chart_of(cdk8s.App(), "chart", [claim])]) == [claim]


def test_a_volume_with_tokens_is_for_cloudformation_only(environment: Environment) -> None:
    token = cdk.Fn.get_att("FileSystem", "DNSName").to_string()
    charts = cluster_charts(cdk8s.App(), environment, LustreVolume("fs-1", token, "abc"))
    with pytest.raises(InvalidManifestError, match=r"volumeAttributes\.dnsname holds a CDK token"):
        manifests(charts)
    assert token in str(charts[-1].to_json())
