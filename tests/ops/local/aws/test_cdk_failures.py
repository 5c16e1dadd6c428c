"""Every failure on demand under the real CDK command line: how the stack ends, what is printed, the exit code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aws_cdk import App, CfnResource, Environment, LegacyStackSynthesizer, Stack

from ops.local.aws.local_aws import LocalAws
from ops.local.aws.settings import Failure, Settings
from ops.local.aws.testing import TIME_SCALE, World
from ops.local.aws.testing import templates as t

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

LIMIT_S = 300


def _log_group(**more: Any) -> dict[str, Any]:
    return t.resource("Logs::LogGroup", **more)


STACKS: dict[str, dict[str, Any]] = {
    "waits": {"Slow": _log_group()},
    "breaks": {"Good": _log_group(), "Broken": {**_log_group(), "DependsOn": "Good"}},
    "retries": {"Group": t.resource("EC2::PlacementGroup", Strategy="spread")},
    "gives-up": {"Keeper": _log_group(RetentionInDays=7)},
    "silent": {"Quiet": _log_group()},
    "clings": {"Clinging": _log_group(), "Other": _log_group()},
    "full": {
        **t.network(),
        **t.cluster("full"),
        "Nodes": t.node_group(1, InstanceTypes=["m7i.xlarge"]),
    },
    "stuck": {**t.network(), "Fs": t.file_system()},
    "guarded": {
        "Vpc": t.resource("EC2::VPC", CidrBlock="10.1.0.0/16"),
        "Subnet": t.resource("EC2::Subnet", VpcId=t.ref("Vpc"), CidrBlock="10.1.0.0/24"),
    },
}
FAILURES = (
    Failure(kind="slow", match="Slow", extra_s=2 * TIME_SCALE),
    Failure(kind="create_fails", match="Broken", reason="It broke on demand"),
    Failure(kind="throttling", match="ec2:CreatePlacementGroup", times=2),
    Failure(kind="throttling", match="logs:PutRetentionPolicy"),
    Failure(kind="events_missing", match="silent"),
    Failure(kind="delete_fails", match="Clinging", reason="It clings on demand"),
    Failure(kind="no_capacity", match="m7i.*"),
    Failure(kind="stuck_interface", match="Created By Amazon FSx*"),
)


@dataclass
class Failing:
    """`cdk` on stacks that fail on demand."""

    world: World
    command: Path
    assembly: Path

    def __call__(self, verb: str, stack: str) -> tuple[int, str]:
        """Exit code and output of one verb on one stack."""
        ended = subprocess.run(
            [str(self.command), verb, stack, "--app", str(self.assembly), *self._answers(verb)],
            cwd=self.assembly.parent,
            env={**os.environ, **self.world.aws.environ(), "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return ended.returncode, ended.stdout

    @staticmethod
    def _answers(verb: str) -> list[str]:
        return ["--force"] if verb == "destroy" else ["--require-approval", "never"]

    def all(self, verb: str, stacks: list[str]) -> dict[str, tuple[int, str]]:
        """The verb on several stacks, a few at a time: the command mostly waits."""
        with ThreadPoolExecutor(3) as pool:
            return dict(zip(stacks, pool.map(lambda stack: self(verb, stack), stacks), strict=True))


def _assembly(folder: Path, aws: LocalAws) -> Path:
    """The stacks; so small that the command hands them over as they are, without a bootstrapped account."""
    app = App(outdir=str(folder))
    environment = Environment(account=aws.environ()["CDK_DEFAULT_ACCOUNT"], region=aws.region)
    for name, resources in STACKS.items():
        stack = Stack(app, name, env=environment, synthesizer=LegacyStackSynthesizer())
        for logical, body in resources.items():
            made = CfnResource(stack, logical, type=body["Type"], properties=body["Properties"])
            if "DependsOn" in body:
                made.add_override("DependsOn", body["DependsOn"])
    app.synth()
    return folder


@pytest.fixture(scope="module")
def cdk(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> Iterator[Failing]:
    """The command and its stacks, on an AWS of their own."""
    aws = LocalAws(tmp_path_factory.mktemp("failing"))
    aws.start(Settings(time_scale=TIME_SCALE, failures=FAILURES))
    try:
        assembly = _assembly(tmp_path_factory.mktemp("assembly") / "cdk.out", aws)
        yield Failing(World(aws), project_root / "node_modules/.bin/cdk", assembly)
    finally:
        aws.stop()


@pytest.fixture(scope="module")
def deployed(cdk: Failing) -> dict[str, tuple[int, str]]:
    """How each deploy ended."""
    ended = cdk.all("deploy", [name for name in STACKS if name != "guarded"])
    cdk.world.aws.fail(*FAILURES, Failure(kind="service_endpoint"))
    return ended | {"guarded": cdk("deploy", "guarded")}


@pytest.mark.parametrize("stack", ["waits", "retries", "silent", "clings", "stuck", "guarded"])
def test_what_only_delays_a_deploy_does_not_fail_it(
    cdk: Failing, deployed: dict[str, tuple[int, str]], stack: str
) -> None:
    code, printed = deployed[stack]
    assert code == 0, printed
    assert "✅" in printed
    assert cdk.world.status(stack) == "CREATE_COMPLETE"


@pytest.mark.parametrize(
    ("stack", "resource", "reason"),
    [
        ("breaks", "Broken", "It broke on demand"),
        ("gives-up", "Keeper", "Rate exceeded"),
        ("full", "Nodes", "We currently do not have sufficient m7i.xlarge capacity"),
    ],
)
def test_a_deploy_that_fails_rolls_back_and_says_why(
    cdk: Failing, deployed: dict[str, tuple[int, str]], stack: str, resource: str, reason: str
) -> None:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/stack-failure-options.html"""
    code, printed = deployed[stack]
    assert code == 1, printed
    assert reason in printed
    assert resource in printed
    assert cdk.world.status(stack) == "ROLLBACK_COMPLETE"
    assert reason in cdk.world.reasons(stack, "CREATE_FAILED")[resource]


def test_a_destroy_that_fails_leaves_what_clings_and_says_why(
    cdk: Failing, deployed: dict[str, tuple[int, str]]
) -> None:
    """https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/cfn-console-delete-stack.html"""
    assert deployed
    wanted = {
        "clings": ("Clinging", "It clings on demand"),
        "stuck": ("Group", "has a dependent object"),
        "guarded": ("Subnet", "has dependencies and cannot be deleted"),
    }
    for stack, (code, printed) in cdk.all("destroy", list(wanted)).items():
        resource, reason = wanted[stack]
        assert code == 1, printed
        assert cdk.world.status(stack) == "DELETE_FAILED"
        assert reason in cdk.world.reasons(stack, "DELETE_FAILED")[resource]
    cdk.world.fail()
    code, printed = cdk("destroy", "clings")
    assert code == 0, printed
    assert cdk.world.status("clings") == "DELETE_COMPLETE"
