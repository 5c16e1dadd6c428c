"""What a GPU node is told before kubelet starts: one golden file per family. UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from environments.environment import Environment, parse
from environments.instance_types import HUGE_PAGES_2MIB, INSTANCE_TYPES
from infra.user_data import gpu_user_data

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parent / "golden" / "user_data"
CASES = [(name, efa) for name in INSTANCE_TYPES for efa in ((False, True) if name == "p5.48xlarge" else (False,))]


def environment(instance_type: str, efa: bool = False) -> Environment:
    fields = {
        "name": "golden",
        "region": "us-east-1",
        "availability_zone": "us-east-1b",
        "instance_type": instance_type,
        "nodes": 2,
        "file_system": {"efa": efa},
        "access": {"admins": ["arn:aws:iam::111122223333:role/admin"]},
        "training": {"data": {"global_batch_size": 16}},
    }
    return parse(fields, "golden")


@pytest.mark.parametrize(("instance_type", "efa"), CASES)
def test_user_data_is_the_golden_one(instance_type: str, efa: bool) -> None:
    path = GOLDEN / f"{instance_type}{'.lustre-efa' if efa else ''}.txt"
    rendered = gpu_user_data(environment(instance_type, efa))
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rendered, encoding="utf-8")
    assert rendered == path.read_text(encoding="utf-8")


def parts(instance_type: str, efa: bool = False) -> dict[str, str]:
    message = email.message_from_string(gpu_user_data(environment(instance_type, efa)))
    assert message.is_multipart()
    return {part.get_content_type(): str(part.get_payload()) for part in message.get_payload()}  # type: ignore[union-attr]


def test_it_is_mime_that_others_can_read() -> None:
    """Report: eks-ami#985: images and pods lie on the local disks, not on a root that fills."""
    found = parts("p5.48xlarge")
    assert set(found) == {"application/node.eks.aws", "text/x-shellscript"}
    node = yaml.safe_load(found["application/node.eks.aws"])
    assert node["apiVersion"] == "node.eks.aws/v1alpha1"
    assert node["spec"]["instance"]["localStorage"] == {"strategy": "RAID0"}
    assert node["spec"]["kubelet"]["config"] == {"maxPods": 51}
    assert found["text/x-shellscript"].startswith("#!/bin/bash\n")


@pytest.mark.parametrize("efa", [False, True])
def test_the_script_is_a_script(efa: bool) -> None:
    bash = shutil.which("bash")
    assert bash
    script = parts("p5.48xlarge", efa)["text/x-shellscript"]
    subprocess.run([bash, "-n"], input=script, text=True, check=True)


def test_huge_pages_are_as_many_as_pods_may_ask_for() -> None:
    """Report: awsome#1230: a node without any leaves pods that request them Pending."""
    script = parts("p5.48xlarge")["text/x-shellscript"]
    assert f"vm.nr_hugepages = {HUGE_PAGES_2MIB}" in script
    assert "LimitMEMLOCK=infinity" in script
