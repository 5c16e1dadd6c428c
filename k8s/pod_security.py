"""How our containers run: without rights, or as root with IPC_LOCK, never in between."""

from __future__ import annotations

from typing import Any

USER_ID = 1000
GROUP_ID = 1000
"""The image's user (docker/Dockerfile)."""


def pod_security(root: bool) -> dict[str, Any]:
    """The pod's securityContext."""
    profile = {"seccompProfile": {"type": "RuntimeDefault"}}
    if root:
        return {"runAsUser": 0, "runAsGroup": 0, **profile}
    return {"runAsNonRoot": True, "runAsUser": USER_ID, "runAsGroup": GROUP_ID, **profile}


def container_security(root: bool) -> dict[str, Any]:
    """The container's securityContext.

    IPC_LOCK goes only with root: added capabilities are not ambient, so a non-root container has it in
    name only (kubernetes#56374); nodes raise memlock instead.
    """
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if root:
        # DAC_OVERRIDE and CHOWN: run directories belong to the image's user, whoever made them.
        capabilities["add"] = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "IPC_LOCK", "KILL"]
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}
