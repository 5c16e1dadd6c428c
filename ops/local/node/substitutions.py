"""The four things that differ between a pod on a node and the same pod as processes of this machine.

Everything else of the manifest is used as it stands. What is changed is printed and recorded from here alone.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Substitutions:
    """Where the image, the file system and the shared memory of pods are on this machine."""

    file_system: Path
    """What every PersistentVolumeClaim is: the environment's shared file system."""
    project_root: Path
    """The working directory of every container."""
    python: Path = field(default_factory=lambda: Path(sys.executable))
    """The image's Python."""
    network: str | None = None
    """`namespaces` or `loopback`; None: namespaces where the machine allows it."""

    def to_json(self) -> dict[str, str | None]:
        """For the daemon's settings."""
        return {
            "file_system": str(self.file_system),
            "project_root": str(self.project_root),
            "python": str(self.python),
            "network": self.network,
        }

    @staticmethod
    def from_json(data: dict[str, str | None]) -> Substitutions:
        """The reverse."""
        file_system, root, python = (Path(str(data[k])) for k in ("file_system", "project_root", "python"))
        return Substitutions(file_system, root, python, data["network"])

    def describe(self, network_mode: str, limits: str) -> dict[str, str]:
        """The four, in words; what run.json records."""
        names = {
            "namespaces": "by /etc/hosts in each pod's own network namespace",
            "loopback": "replaced in values and arguments by loopback addresses",
        }
        return {
            "mounts": f"claims → {self.file_system}; emptyDir Memory → a folder per pod under {SHARED_MEMORY}; "
            "other volumes → a folder per pod; rewritten in environment variables only",
            "service_names": names[network_mode],
            "resources": limits,
            "image": f"{self.python} in {self.project_root}, as the user who started it",
        }

    def command(self, argv: list[str]) -> list[str]:
        """The image's `python` is the project's."""
        if argv and argv[0] in ("python", "python3"):
            return [str(self.python), *argv[1:]]
        return argv


def rewrite_path(value: str, mounts: dict[str, Path]) -> str:
    """A value that is or begins with a mount path leads to the folder behind it; the longest mount path wins."""
    for mount_path in sorted(mounts, key=len, reverse=True):
        if value == mount_path or value.startswith(mount_path.rstrip("/") + "/"):
            return str(mounts[mount_path]) + value[len(mount_path.rstrip("/")) :]
    return value


def replace_names(value: str, addresses: dict[str, str]) -> str:
    """Names of Services and pods become addresses: full names anywhere, a bare name only before a port.

    A bare name may be a run's name as well; only `name:port` is certain to be a host.
    """
    for name in sorted(addresses, key=len, reverse=True):
        after = r"(?![\w.-])" if ".svc" in name else r"(?=:\d)"
        value = re.sub(rf"(?<![\w.-]){re.escape(name)}{after}", addresses[name], value)
    return value
