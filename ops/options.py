"""Arguments and options that verbs share, and what they make of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from environments.environment import Environment, find, load
from ops.console import Output

EnvironmentArgument = Annotated[
    str, typer.Argument(metavar="ENV", help="A name under environments/, or the path of a .yaml file.")
]
RunOption = Annotated[str, typer.Option("--run", metavar="NAME", help="The run's name.")]
LocalOption = Annotated[bool, typer.Option("--local", help="On this machine: emulated AWS, processes as pods.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The result as one JSON object on standard output.")]
YesOption = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dataclass(frozen=True)
class Call:
    """What every verb is called with."""

    environment: Environment
    path: Path
    local: bool
    output: Output

    @classmethod
    def of(cls, name: str, *, local: bool = False, as_json: bool = False, yes: bool = False) -> Call:
        """Raises InvalidEnvironmentError with every problem of the file."""
        path = find(name)
        return cls(load(path), path, local, Output(as_json=as_json, yes=yes))

    @property
    def state(self) -> Path:
        """What this machine keeps of the environment: `.local/<environment>`."""
        return local_folder() / self.environment.name


def local_folder() -> Path:
    """`.local` in the current directory, or STEADFAST_LOCAL."""
    return Path(os.environ.get("STEADFAST_LOCAL", ".local")).absolute()
