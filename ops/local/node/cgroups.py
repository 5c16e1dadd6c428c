"""A control group per container: finds every process of it, kills them all at once, bounds its memory.

Works with the mixed layout (version 1 memory beside a version 2 tree), with version 2 alone, and with none.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PARENT = "steadfast"
_END_S = 5.0


def _first_writable(candidates: list[Path], needs: str) -> Path | None:
    for root in candidates:
        if (root / needs).exists() and os.access(root, os.W_OK):
            return root
    return None


@dataclass(frozen=True)
class Cgroups:
    """The trees in use for one environment; `None` where the machine does not allow it."""

    name: str
    tree: Path | None
    memory: Path | None
    memory_version: int

    @staticmethod
    def find(name: str) -> Cgroups:
        """What this machine offers."""
        tree = _first_writable([_ROOT, _ROOT / "unified"], "cgroup.controllers")
        first = _first_writable([_ROOT / "memory"], "memory.limit_in_bytes")
        if first is not None:
            return Cgroups(name, tree, first, 1)
        delegated = tree is not None and "memory" in (tree / "cgroup.subtree_control").read_text().split()
        return Cgroups(name, tree, tree if delegated else None, 2)

    def describe(self) -> str:
        """One sentence for people."""
        if self.memory is None:
            return "memory limits are recorded, not enforced: no writable memory cgroup on this machine"
        return f"memory limits are enforced by cgroup v{self.memory_version}; other limits are recorded"

    def create(self, container: str, memory_bytes: int | None) -> list[Path]:
        """The groups a container's first process must join; made afresh if they exist."""
        groups = []
        if self.tree is not None:
            groups.append(self._make(self.tree, container))
        if self.memory is not None and memory_bytes is not None:
            group = self._make(self.memory, container)
            limit = "memory.limit_in_bytes" if self.memory_version == 1 else "memory.max"
            (group / limit).write_text(str(memory_bytes))
            groups.append(group)
        return list(dict.fromkeys(groups))

    def _make(self, root: Path, container: str) -> Path:
        if root == self.memory and self.memory_version == 2:
            for level in (root / _PARENT, root / _PARENT / self.name):
                level.mkdir(exist_ok=True)
                (level / "cgroup.subtree_control").write_text("+memory")
        group = root / _PARENT / self.name / container
        group.mkdir(parents=True, exist_ok=True)
        return group

    def _groups(self, prefix: str) -> list[Path]:
        roots = {r for r in (self.tree, self.memory) if r is not None}
        return [g for root in roots for g in sorted((root / _PARENT / self.name).glob(f"{prefix}*")) if g.is_dir()]

    def processes(self, prefix: str) -> set[int]:
        """pids in all groups whose name starts so."""
        pids: set[int] = set()
        for group in self._groups(prefix):
            try:
                pids.update(int(p) for p in (group / "cgroup.procs").read_text().split())
            except OSError:
                continue
        return pids

    def kill(self, prefix: str) -> None:
        """SIGKILL for all of them in one stroke."""
        for group in self._groups(prefix):
            if (group / "cgroup.kill").exists():
                (group / "cgroup.kill").write_text("1")

    def freeze(self, prefix: str, frozen: bool) -> bool:
        """Stops or continues all of them; False if the machine cannot."""
        groups = [g for g in self._groups(prefix) if (g / "cgroup.freeze").exists()]
        for group in groups:
            (group / "cgroup.freeze").write_text("1" if frozen else "0")
        return bool(groups)

    def remove(self, prefix: str) -> None:
        """Takes the groups away; waits for killed processes to leave them."""
        deadline = time.monotonic() + _END_S
        for group in self._groups(prefix):
            _remove_when_empty(group, deadline)

    def remove_all(self) -> None:
        """Takes the environment's groups away, and the parent if it was the last."""
        self.kill("")
        self.remove("")
        for root in {r for r in (self.tree, self.memory) if r is not None}:
            for level in (root / _PARENT / self.name, root / _PARENT):
                try:
                    level.rmdir()
                except OSError:
                    break  # absent, or another environment lives beside it


def _remove_when_empty(group: Path, deadline: float) -> None:
    while True:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return
