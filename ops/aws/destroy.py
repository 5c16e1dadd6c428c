"""Taking an environment away, and proving that it is gone."""

from __future__ import annotations

import time
from collections.abc import Callable

from ops.aws.access import Aws
from ops.aws.archive import export, file_system_id
from ops.aws.inventory import Item, inventory, left_over
from ops.aws.purge import delete_function_logs, delete_repository, empty_and_delete_bucket
from ops.aws.stacks import ORDER, delete, lift_protection, stack
from ops.errors import LeftOverError

STACK_LIMIT_S = 3600.0
EXPORT_LIMIT_S = 4 * 3600.0
ATTEMPTS = 2
"""A deletion that fails on something slow to let go, such as an interface, succeeds the second time."""
INTERFACE_WAIT_S = 60.0


def destroy(aws: Aws, *, purge: bool, say: Callable[[str], None], poll_s: float = 5.0) -> None:
    """Archive check, then the stacks in reverse, then the proof.

    Protection is lifted only when everything is in the archive. Raises CloudError when that cannot be had, and
    LeftOverError naming whatever still exists.
    """
    if file_system_id(aws) is not None:
        say(f"archived: {export(aws, say, limit_s=EXPORT_LIMIT_S, poll_s=poll_s)} files were still to be exported")
    for kind in reversed([kind for kind in ORDER if kind != "archive"]):
        _remove(aws, kind, say, poll_s)
    if groups := delete_function_logs(aws):
        say(f"deleted {groups} log groups that the cluster's functions made while they went")
    if purge:
        _purge(aws, say, poll_s)
    remaining = left_over(inventory(aws), purged=purge)
    if remaining:
        raise LeftOverError(
            f"{aws.environment.name} is not gone",
            details=[str(item) for item in remaining],
            fix="`steadfast destroy` may be run again; `steadfast inventory` shows what is there",
        )


def _remove(aws: Aws, kind: str, say: Callable[[str], None], poll_s: float) -> None:
    found = stack(aws, kind)
    if found is None:
        return
    if found.protected:
        lift_protection(aws, kind)
    problems: list[str] = []
    for attempt in range(ATTEMPTS):
        say(f"deleting {found.name}" + (" once more" if attempt else ""))
        problems = delete(aws, kind, say, STACK_LIMIT_S, poll_s)
        if not problems:
            return
        time.sleep(min(INTERFACE_WAIT_S, 12 * poll_s))
    raise LeftOverError(f"{found.name} could not be deleted", details=problems)


def _purge(aws: Aws, say: Callable[[str], None], poll_s: float) -> None:
    say(f"emptied and deleted bucket {aws.bucket}: {empty_and_delete_bucket(aws)} object versions")
    if delete_repository(aws):
        say(f"deleted image repository {aws.environment.repository}")
    _remove(aws, "archive", say, poll_s)


def doomed(aws: Aws, *, purge: bool) -> list[Item]:
    """What `destroy` is going to delete."""
    return left_over(inventory(aws), purged=purge)
