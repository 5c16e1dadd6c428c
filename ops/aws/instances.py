"""Instances by the provider id of their Node."""

from __future__ import annotations

from ops.aws.access import aws_of
from ops.errors import InvalidInputError
from ops.options import Call

WAIT = {"Delay": 5, "MaxAttempts": 60}


def terminate(call: Call, provider_id: str) -> None:
    """End an instance and wait until EC2 says so: only then do its processes certainly write no more.

    Raises InvalidInputError when the node is no EC2 instance.
    """
    instance = provider_id.rsplit("/", 1)[-1]
    if not provider_id.startswith("aws://") or not instance.startswith("i-"):
        raise InvalidInputError(f"the node's provider id {provider_id!r} names no EC2 instance")
    ec2 = aws_of(call).client("ec2")
    ec2.terminate_instances(InstanceIds=[instance])
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[instance], WaiterConfig=WAIT)
