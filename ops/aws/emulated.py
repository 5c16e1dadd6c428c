"""The emulated AWS of `--local`: started when it is not there, used by every client and child of this process."""

from __future__ import annotations

import os
from pathlib import Path

from ops.local.aws.local_aws import LocalAws
from ops.local.holders import Holders, Part
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.node.substitutions import Substitutions
from ops.local_use import refuse_if_used
from ops.options import Call

PROJECT_ROOT = Path(__file__).parent.parent.parent


def emulated(call: Call) -> LocalAws:
    """The emulated AWS of an environment, running or not."""
    return LocalAws(call.state / "aws", call.environment.region)


def use_emulated(call: Call, holders: Holders) -> None:
    """Start Kubernetes and AWS, and point this process at them and at nothing else."""
    cluster, local = LocalCluster(call.state), emulated(call)
    with holders.changing():
        kubeconfig = cluster.start(
            [], call.environment.kubernetes_version, Substitutions(call.state / "fsx", PROJECT_ROOT)
        )
        if not local.is_running() and not holders.is_kept(Part.AWS):
            holders.mark(Part.AWS)
        local.start(local.settings.model_copy(update={"kubeconfig": kubeconfig}))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(local.environ())


def refuse_while_used(call: Call) -> None:
    """Raises RefusedError when another command uses the emulated AWS or the local Kubernetes."""
    holders = Holders(call.state)
    with holders.changing():
        refuse_if_used(call, holders)


def stop_emulated(call: Call) -> None:
    """End both, with every process of theirs. Raises RefusedError as `refuse_while_used` does."""
    holders = Holders(call.state)
    with holders.changing():
        refuse_if_used(call, holders)
        emulated(call).stop()
        LocalCluster(call.state).stop()
        holders.forget()
