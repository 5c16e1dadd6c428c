"""Every stack in order, from one synthesis, with progress."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ops.aws.access import Aws
from ops.aws.cdk_cli import cdk
from ops.aws.eks import node_group
from ops.aws.frozen import replaces_nodes
from ops.aws.stacks import ORDER, bootstrapped, stack, stack_name
from ops.errors import RefusedError
from ops.files import write_atomically

SCHEDULE_MARGIN = timedelta(minutes=15)
"""A schedule must lie ahead when CloudFormation comes to make it."""
Say = Callable[[str], None]


def deploy(aws: Aws, state: Path, say: Say, refuse_under_a_run: Callable[[], None]) -> dict[str, Any]:
    """Deploy what is new or changed; the outputs of all stacks. Raises CloudError with CloudFormation's reason.

    GPU nodes stay as many as they are: a deployment never scales. Raises RefusedError when it would have to, and
    asks `refuse_under_a_run` before it changes a node group that has nodes.
    """
    from infra.app import build  # jsii: only when it is needed

    assembly = state / "cdk.out"
    shutil.rmtree(assembly, ignore_errors=True)
    build(aws.environment, assembly)
    _spare_the_nodes(aws, assembly, refuse_under_a_run)
    if not bootstrapped(aws):
        say("bootstrapping CDK in this account and region")
        cdk(aws, ["bootstrap", f"aws://{aws.account()}/{aws.environment.region}", "--app", str(assembly)], say)
    for number, kind in enumerate(ORDER, 1):
        say(f"stack {number} of {len(ORDER)}: {stack_name(aws, kind)}")
        cdk(aws, [*_deploy_command(aws, kind, assembly)], say)
    outputs = {kind: found.outputs for kind in ORDER if (found := stack(aws, kind))}
    write_atomically(state / "outputs.json", json.dumps(outputs, indent=2) + "\n")
    return outputs


def _spare_the_nodes(aws: Aws, assembly: Path, refuse_under_a_run: Callable[[], None]) -> None:
    group, most = node_group(aws), aws.environment.nodes + aws.environment.spares
    if group is None or group.desired == 0:
        return
    if group.desired > most:
        raise RefusedError(
            f"{aws.environment.node_group} has {group.desired} nodes, and nodes and spares are {most} now",
            fix=f"`steadfast scale {aws.environment.name} {most}` first, or the file's old numbers",
        )
    if replaces_nodes(aws, assembly):
        refuse_under_a_run()


def _deploy_command(aws: Aws, kind: str, assembly: Path) -> list[str]:
    name = stack_name(aws, kind)
    command = ["deploy", name, "--app", str(assembly), "--exclusively", "--require-approval", "never"]
    command += ["--progress", "events", "--ci"]
    if kind == "capacity":
        group = node_group(aws)
        command += ["--parameters", f"{name}:DesiredNodes={group.desired if group else 0}"]
        if block := aws.environment.capacity_block:
            begun = "yes" if block.start - datetime.now(UTC) < SCHEDULE_MARGIN else "no"
            command += ["--parameters", f"{name}:BlockHasBegun={begun}"]
    return command
