"""State under `.local/` that this version of the code cannot read: said in one way, across processes too."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

from ops.errors import Code, RefusedError


class UnreadableStateError(RefusedError):
    """A state file of another version of the code, or a damaged one. Nothing was changed."""

    def __init__(self, file: Path, why: str, disposable: Path) -> None:
        """`disposable`: what to remove to begin again from nothing."""
        super().__init__(
            f"{file} cannot be used: {why}",
            fix=f"go on with the version that wrote it, or begin again from nothing: `rm -r {disposable}`",
        )
        self.file, self.why, self.disposable = file, why, disposable


def end_server(error: UnreadableStateError) -> NoReturn:
    """Ends a server process so that whoever started it can say why (`raise_if_refused`)."""
    facts = {"file": str(error.file), "why": error.why, "disposable": str(error.disposable)}
    sys.stderr.write(json.dumps(facts) + "\n")
    sys.stderr.flush()
    sys.exit(Code.REFUSED)


def raise_if_refused(exit_code: int | None, log: Path) -> None:
    """Raises UnreadableStateError if a server process has ended by `end_server`; its log ends with the reason."""
    if exit_code == Code.REFUSED:
        facts = json.loads(log.read_text(errors="replace").rstrip().rpartition("\n")[2])
        raise UnreadableStateError(Path(facts["file"]), facts["why"], Path(facts["disposable"]))
