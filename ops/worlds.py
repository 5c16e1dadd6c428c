"""One way to an environment's world, local or on AWS."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ops.errors import InvalidInputError
from ops.options import Call
from ops.world import World


@contextmanager
def open_world(call: Call, *, bring_up: bool = False, keep: bool = False) -> Iterator[World]:
    """The environment's cluster and runs. With --local, `bring_up` starts what is missing and ends it again.

    Raises InvalidInputError when a local environment is not up, CloudError when AWS or the cluster fails.
    """
    if call.local:
        from ops.local_world import local_world, running_world

        if bring_up:
            with local_world(call, keep=keep) as world:
                yield world
        else:
            yield running_world(call) or _not_up(call)
    else:
        from ops.aws.world import aws_world

        yield aws_world(call)


def _not_up(call: Call) -> World:
    raise InvalidInputError(
        f"{call.environment.name} is not up on this machine",
        fix=f"`steadfast submit {call.environment.name} --local --run NAME --detach` brings it up",
    )
