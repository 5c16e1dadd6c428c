"""Entry of the `steadfast` command. Imports little itself: Ctrl-C finds it prepared from the first moment."""

from __future__ import annotations

import contextlib
import os
import sys

from ops.interrupts import INTERRUPTED, heed


def main() -> None:
    """Run a verb. SIGTERM and a closed terminal end it as Ctrl-C does, so that nothing is left behind."""
    try:
        heed()
        from ops.verbs import app  # a second of imports

        app()
    except KeyboardInterrupt:
        _end_interrupted()
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer's word for an interrupted verb
            _end_interrupted()
        raise


def _end_interrupted() -> None:
    """At once: Ctrl-C reached jsii's Node process too, and nothing is left to say goodbye to."""
    with contextlib.suppress(OSError):  # nobody may be reading any more
        sys.stderr.write("\nsteadfast: stopped\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)
