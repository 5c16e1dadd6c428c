"""What a local cluster was started with: written by the command, read by the server and by whoever ends it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from ops.local.kubernetes.layout import Layout
from ops.local.kubernetes.nodes import NodeSpec
from ops.local.node.substitutions import Substitutions
from ops.local.state_files import UnreadableStateError


@dataclass(frozen=True)
class ClusterSettings:
    """The file `settings.json`."""

    nodes: tuple[NodeSpec, ...]
    kubernetes_version: str
    substitutions: Substitutions
    time_scale: float

    def write(self, layout: Layout) -> None:
        """Atomically."""
        facts = {
            "nodes": [n.to_json() for n in self.nodes],
            "kubernetes_version": self.kubernetes_version,
            "substitutions": self.substitutions.to_json(),
            "time_scale": self.time_scale,
        }
        Layout.write(layout.settings, json.dumps(facts, indent=2))

    @staticmethod
    def read(layout: Layout) -> ClusterSettings:
        """Raises UnreadableStateError for a file of another version, or none."""
        try:
            facts = json.loads(layout.settings.read_text())
            return ClusterSettings(
                tuple(NodeSpec.from_json(n) for n in facts["nodes"]),
                str(facts["kubernetes_version"]),
                Substitutions.from_json(facts["substitutions"]),
                float(facts["time_scale"]),
            )
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise UnreadableStateError(layout.settings, why, layout.root) from None
