"""What is allowed and still worth knowing before money is spent; `steadfast check` shows it."""

from __future__ import annotations

from environments.environment import Environment
from environments.sections import OnDemand


def notes(env: Environment) -> list[str]:
    """Each as `field: what follows from it`."""
    found = []
    if env.kubernetes_version == "1.36":
        found.append("kubernetes_version: 1.36 nodes run kernel 6.18, for which Lustre support is not settled")
    if env.plugins == "by-stack" and env.endpoint != "public":
        found.append(
            f"endpoint: with {env.endpoint} the stack's Lambda stands in the VPC; its network interfaces hold up "
            "destroy by about 18 minutes (plugins: by-cli leaves it out)"
        )
    if env.plugins == "by-cli":
        found.append("plugins: after plain `cdk deploy` nodes get no GPUs until `steadfast deploy` has run")
    if env.endpoint == "private":
        found.append("endpoint: private: commands that talk to Kubernetes work from inside the VPC only")
    if isinstance(env.capacity, OnDemand) and env.instance.gpus == 8 and env.instance_type != "g6e.48xlarge":
        found.append(
            f"capacity: on-demand {env.instance_type} is often not to be had; a failed request leaves the "
            "environment up, without nodes"
        )
    if env.spares > env.nodes:
        found.append(f"spares: {env.spares} nodes wait for {env.nodes} that train, and cost as much")
    if env.file_system.efa and env.network.egress == "endpoints":
        found.append(
            "file_system.efa: without a way out the node image itself must hold AWS's set-up of Lustre over EFA, "
            "which is otherwise fetched from docs.aws.amazon.com"
        )
    if env.file_system.efa:
        found.append("file_system.efa: cannot be switched off later, and is not tried in a real account by us")
    if env.archive.adopt:
        found.append(
            "archive.adopt: the bucket's versioning, encryption and lifecycle stay as their owner made them"
        )
    return found
