"""Who we are to AWS, and its clients. `--local` is the same clients pointed at the emulated AWS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from environments.environment import Environment
from ops.errors import InvalidInputError
from ops.options import Call

RETRIES = Config(retries={"mode": "adaptive", "max_attempts": 8}, connect_timeout=10)


class Clients(Protocol):
    """Where AWS clients come from."""

    def client(self, name: str) -> Any:
        """A boto3 client of the environment's region."""


@dataclass(frozen=True)
class Aws:
    """One environment's account and region."""

    environment: Environment
    session: boto3.Session
    _clients: dict[str, Any] = field(default_factory=dict)

    def client(self, name: str) -> Any:
        """A boto3 client of the environment's region, made once."""
        if name not in self._clients:
            self._clients[name] = self.session.client(name, region_name=self.environment.region, config=RETRIES)
        return self._clients[name]

    def account(self) -> str:
        """The account that the credentials belong to. Raises botocore's errors when there are none."""
        return str(self.client("sts").get_caller_identity()["Account"])

    @property
    def bucket(self) -> str:
        """The archive's bucket."""
        name = self.environment.archive.bucket
        return name or f"{self.environment.name}-archive-{self.account()}-{self.environment.region}"


@contextmanager
def using_aws(call: Call) -> Iterator[Aws]:
    """Clients for one verb. With --local what had to be started for it ends with it, unless another verb uses it.

    A verb that makes something which is to last says so by `ops.local_use.keep_up`. Raises as `aws_of` does.
    """
    if not call.local:
        yield aws_of(call)
        return
    from ops.aws.emulated import use_emulated
    from ops.local_use import in_use

    with in_use(call) as holders:
        use_emulated(call, holders)
        yield Aws(call.environment, boto3.Session(region_name=call.environment.region))


def aws_of(call: Call) -> Aws:
    """Clients of the real AWS. Raises InvalidInputError when the credentials belong to another account."""
    environment = call.environment
    aws = Aws(environment, boto3.Session(profile_name=environment.profile, region_name=environment.region))
    if environment.account and aws.account() != environment.account:
        raise InvalidInputError(
            f"account: the file says {environment.account} and the credentials belong to {aws.account()}",
            fix="use other credentials, or set `profile` in the file",
        )
    return aws


def child_environment(aws: Aws) -> dict[str, str]:
    """Variables for the CDK command line: the same credentials and region, and no news about Node."""
    quiet = {"CDK_DISABLE_CLI_TELEMETRY": "1", "NODE_NO_WARNINGS": "1", "FORCE_COLOR": "0"}
    profile = {"AWS_PROFILE": aws.environment.profile} if aws.environment.profile else {}
    region = {"AWS_REGION": aws.environment.region, "AWS_DEFAULT_REGION": aws.environment.region}
    return {**os.environ, **quiet, **profile, **region}


def error_code(error: ClientError) -> str:
    """AWS's own word for what went wrong."""
    return str(error.response.get("Error", {}).get("Code", ""))


def error_message(error: ClientError) -> str:
    """AWS's own sentence."""
    return str(error.response.get("Error", {}).get("Message", error))
