"""A local world for as long as commands use it: the last to leave takes away what was brought up for its use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ops.errors import RefusedError
from ops.interrupts import not_interrupted
from ops.local.aws.local_aws import LocalAws
from ops.local.holders import Holders, Part
from ops.local.kubernetes.cluster import LocalCluster
from ops.options import Call


@contextmanager
def in_use(call: Call) -> Iterator[Holders]:
    """Use the call's local world. A cluster that is not there yet goes again with its last user, unless kept."""
    holders = Holders(call.state)
    try:
        with holders.changing(lambda: _say_waiting(call)):
            holders.enter()
            if not LocalCluster(call.state).exists():
                holders.mark(Part.KUBERNETES)
        yield holders
    finally:
        with not_interrupted(), holders.changing():
            holders.leave()
            if not holders.others():
                _take_away(call, holders)


def _say_waiting(call: Call) -> None:
    call.output.say(
        f"another command is starting or ending {call.environment.name} on this machine: waiting for it"
    )


def _take_away(call: Call, holders: Holders) -> None:
    if holders.is_passing(Part.AWS):
        LocalAws(call.state / "aws").stop()
        holders.gone(Part.AWS)
    if holders.is_passing(Part.KUBERNETES):
        LocalCluster(call.state).stop()
        holders.gone(Part.KUBERNETES)


def keep_up(call: Call, *parts: Part) -> None:
    """They stay up when nobody uses them: something was made in them that is to outlive the command."""
    holders = Holders(call.state)
    with holders.changing():
        holders.keep(*parts)


def goes_with_its_users(call: Call) -> bool:
    """The local Kubernetes was brought up by commands that use it, and ends with the last of them."""
    return Holders(call.state).is_passing(Part.KUBERNETES)


def refuse_if_used(call: Call, holders: Holders) -> None:
    """Raises RefusedError when another command uses the world; call it where nobody can begin to."""
    if others := [pid for pid in holders.others() if pid != os.getpid()]:
        processes = ", ".join(map(str, others))
        raise RefusedError(
            f"{call.environment.name} is used on this machine by another steadfast command (process {processes})",
            fix="let it end, or end it with Ctrl-C",
        )
