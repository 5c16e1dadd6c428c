"""The emulated AWS of `--local`: started when it is not there, used by every client and child of this process."""

from __future__ import annotations

import os
from pathlib import Path

from ops.local.aws.local_aws import LocalAws
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.node.substitutions import Substitutions
from ops.options import Call

PROJECT_ROOT = Path(__file__).parent.parent.parent


def emulated(call: Call) -> LocalAws:
    """The emulated AWS of an environment, running or not."""
    return LocalAws(call.state / "aws", call.environment.region)


def use_emulated(call: Call) -> None:
    """Start Kubernetes and AWS, and point this process at them and at nothing else."""
    cluster = LocalCluster(call.state)
    kubeconfig = cluster.start(
        [], call.environment.kubernetes_version, Substitutions(call.state / "fsx", PROJECT_ROOT)
    )
    local = emulated(call)
    local.start(local.settings.model_copy(update={"kubeconfig": kubeconfig}))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(local.environ())


def stop_emulated(call: Call) -> None:
    """End both, with every process of theirs."""
    emulated(call).stop()
    LocalCluster(call.state).stop()
