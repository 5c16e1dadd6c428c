"""deploy and destroy work on the same stacks and files: one at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ops.errors import RefusedError
from ops.options import Call


@contextmanager
def deploy_lock(call: Call) -> Iterator[None]:
    """Raises RefusedError naming the process that deploys or destroys the environment from this machine."""
    call.state.mkdir(parents=True, exist_ok=True)
    with (call.state / "deploy.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise RefusedError(
                f"{call.environment.name} is being deployed or destroyed by another command "
                f"(process {lock.read().strip() or 'unknown'})",
                fix="let it end, then begin again",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
