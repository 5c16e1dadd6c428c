"""Every stack in order, from one synthesis, with progress."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.aws.access import Aws
from ops.aws.cdk_cli import cdk
from ops.aws.eks import node_group
from ops.aws.stacks import ORDER, bootstrapped, stack, stack_name
from ops.files import write_atomically

Say = Callable[[str], None]


def deploy(aws: Aws, state: Path, say: Say) -> dict[str, Any]:
    """Deploy what is new or changed; the outputs of all stacks. Raises CloudError with CloudFormation's reason.

    GPU nodes stay as many as they are: a deployment never scales.
    """
    from infra.app import build  # jsii: only when it is needed

    assembly = state / "cdk.out"
    shutil.rmtree(assembly, ignore_errors=True)
    build(aws.environment, assembly)
    if not bootstrapped(aws):
        say("bootstrapping CDK in this account and region")
        cdk(aws, ["bootstrap", f"aws://{aws.account()}/{aws.environment.region}", "--app", str(assembly)], say)
    for number, kind in enumerate(ORDER, 1):
        say(f"stack {number} of {len(ORDER)}: {stack_name(aws, kind)}")
        cdk(aws, [*_deploy_command(aws, kind, assembly)], say)
    outputs = {kind: found.outputs for kind in ORDER if (found := stack(aws, kind))}
    write_atomically(state / "outputs.json", json.dumps(outputs, indent=2) + "\n")
    return outputs


def _deploy_command(aws: Aws, kind: str, assembly: Path) -> list[str]:
    name = stack_name(aws, kind)
    command = ["deploy", name, "--app", str(assembly), "--exclusively", "--require-approval", "never"]
    command += ["--progress", "events", "--ci"]
    if kind == "capacity":
        group = node_group(aws)
        command += ["--parameters", f"{name}:DesiredNodes={group.desired if group else 0}"]
    return command
