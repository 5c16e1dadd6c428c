"""What people and programs see: words and progress for people, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.prompt import Confirm

from ops.errors import InvalidInputError

PLAIN_WIDTH = 140


@dataclass(frozen=True)
class Output:
    """With `as_json` standard output carries the result alone, and progress goes to standard error."""

    as_json: bool = False
    yes: bool = False

    @property
    def console(self) -> Console:
        """Where words go. Made at each use, so that it follows a redirected stream."""
        console = Console(stderr=self.as_json, highlight=False, soft_wrap=True)
        if not console.is_terminal:  # a log file has no 80 columns
            console.width = max(console.width, PLAIN_WIDTH)
        return console

    def say(self, text: str) -> None:
        """A line of progress."""
        self.console.print(escape(text))

    def result(self, data: Mapping[str, Any], show: Callable[[Console], None]) -> None:
        """The outcome: as JSON, or shown."""
        if self.as_json:
            sys.stdout.write(json.dumps(data, indent=2, default=str) + "\n")
            sys.stdout.flush()
        else:
            show(self.console)

    @contextmanager
    def working(self, text: str) -> Iterator[Callable[[str], None]]:
        """Something that takes a while; the function given changes the words. Plain lines without a terminal."""
        console = self.console
        if not console.is_terminal:
            console.print(escape(text))
            yield lambda _: None
            return
        with console.status(escape(text)) as status:
            yield lambda words: status.update(escape(words))

    def confirm(self, question: str) -> None:
        """Ask before spending or deleting. Raises InvalidInputError on no, or when nobody can be asked."""
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise InvalidInputError(f"{question} Nobody can be asked: there is no terminal.", fix="add --yes")
        if not Confirm.ask(question, console=self.console, default=False):
            raise InvalidInputError("answered no: nothing was done")
