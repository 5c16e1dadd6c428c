"""Where a local cluster keeps its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.local.node.network import short_id


@dataclass(frozen=True)
class Layout:
    """Paths under an environment's state directory."""

    state_dir: Path

    @property
    def root(self) -> Path:
        """All that belongs to the cluster."""
        return self.state_dir / "kubernetes"

    @property
    def environment(self) -> str:
        """The environment's name with six characters of its path: two checkouts do not meet."""
        return f"{self.state_dir.name}-{short_id(str(self.state_dir.resolve()))}"

    @property
    def settings(self) -> Path:
        """What the server was started with."""
        return self.root / "settings.json"

    @property
    def database(self) -> Path:
        """All objects."""
        return self.root / "objects.sqlite"

    @property
    def address(self) -> Path:
        """Where the server listens and what it substitutes."""
        return self.root / "server.json"

    def last_address(self) -> dict[str, Any]:
        """What the last server said of itself; {} if nothing that this version understands."""
        try:
            said: dict[str, Any] = json.loads(self.address.read_text())
            return said | {"pid": int(said["pid"]), "port": int(said["port"])}
        except (OSError, ValueError, TypeError, KeyError):
            return {}

    @property
    def kubeconfig(self) -> Path:
        """For kubectl and the Python client."""
        return self.root / "kubeconfig"

    @property
    def lock(self) -> Path:
        """Held by the living server."""
        return self.root / "lock"

    @property
    def pid(self) -> Path:
        """The process that holds the lock."""
        return self.root / "pid"

    @property
    def log(self) -> Path:
        """The server's own output."""
        return self.root / "server.log"

    @property
    def pods(self) -> Path:
        """One folder per pod."""
        return self.root / "pods"

    @staticmethod
    def write(path: Path, text: str) -> None:
        """Atomically, readable by the owner alone."""
        new = path.with_name(path.name + ".new")
        new.touch(mode=0o600)
        new.write_text(text)
        new.replace(path)
