"""Nodes whose pods left with 91, this node must not train: cordoned, so that no replacement returns there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kubernetes.client.exceptions import ApiException

from ops.cluster import NOT_FOUND, Cluster, PodState
from trainer.exit_codes import ExitCode

CORDONED = "steadfast/cordoned-for"
"""The pod for whose sake a node was cordoned: whoever opens the node again is not overruled."""
FORBIDDEN = 403
LARGEST_SHARE = 0.5
"""Of the GPU nodes. When more are bad at once it is not the nodes, but storage that nobody can write to, say."""


class BadNodes:
    """Of one Job, while it is followed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: set[str] = set()

    def news(self, pods: Iterable[PodState]) -> Iterator[str]:
        """Cordons the node of each pod that has just left with 91; what was done, or why not, in words."""
        for pod in pods:
            if pod.exit_code == ExitCode.BAD_NODE and pod.node and pod.name not in self._seen:
                yield from list(self._cordon(pod))
                self._seen.add(pod.name)  # not before: an API that fails for a moment is asked again

    def _cordon(self, pod: PodState) -> Iterator[str]:
        nodes = self._cluster.gpu_nodes()
        node = next((node for node in nodes if node.metadata.name == pod.node), None)
        if node is None or _cordoned_for(node) == pod.name:
            return
        why = f"{pod.name} found it unfit: {pod.reason}"
        closed = sum(1 for other in nodes if _cordoned_for(other) and other.spec.unschedulable)
        if closed and closed + 1 > LARGEST_SHARE * len(nodes):
            yield (
                f"  node {pod.node} is not cordoned though {why}; {closed} of {len(nodes)} are already, "
                "so look for what they share"
            )
            return
        yield self._close(pod, why)

    def _close(self, pod: PodState, why: str) -> str:
        body = {"metadata": {"annotations": {CORDONED: pod.name}}, "spec": {"unschedulable": True}}
        try:
            self._cluster.patch_node(pod.node, body)
        except ApiException as error:
            if error.status == NOT_FOUND:
                return f"  node {pod.node} is gone: {why}"
            if error.status != FORBIDDEN:
                raise
            return (
                f"  node {pod.node}: {why}; you may not cordon it, so pods may return there: "
                f"ask the platform team for `kubectl cordon {pod.node}`"
            )
        return f"  node {pod.node} is cordoned: {why}; `steadfast node release ENV {pod.node}` has it replaced"


def _cordoned_for(node: Any) -> str | None:
    found: str | None = (node.metadata.annotations or {}).get(CORDONED)
    return found
