"""Every add-on, chart and layer version, in one place, as pinned and seen on 2026-11-29.

`steadfast check` asks EKS whether a region still offers the add-on versions.
"""

from __future__ import annotations

from typing import Final

KUBERNETES: Final = ("1.34", "1.35", "1.36")
"""What this project's add-on versions and KUBECTL cover."""

_BY_KUBERNETES: Final[dict[str, dict[str, str]]] = {
    "1.34": {"kube-proxy": "v1.34.6-eksbuild.2", "coredns": "v1.13.2-eksbuild.4"},
    "1.35": {"kube-proxy": "v1.35.3-eksbuild.29", "coredns": "v1.13.2-eksbuild.31"},
    "1.36": {"kube-proxy": "v1.36.0-eksbuild.21", "coredns": "v1.14.3-eksbuild.16"},
}
_EVERYWHERE: Final[dict[str, str]] = {
    "vpc-cni": "v1.22.4-eksbuild.3",  # efa-only interfaces need 1.18.5 or newer
    "eks-pod-identity-agent": "v1.3.10-eksbuild.3",
    "aws-fsx-csi-driver": "v1.9.0-eksbuild.1",  # Pod Identity: fsx-csi#372
    "eks-node-monitoring-agent": "v1.7.0-eksbuild.1",
    "aws-secrets-store-csi-driver-provider": "v3.1.3-eksbuild.1",
}


def addon_versions(kubernetes: str) -> dict[str, str]:
    """EKS add-on name to version. Raises KeyError for a Kubernetes version outside KUBERNETES."""
    return {**_EVERYWHERE, **_BY_KUBERNETES[kubernetes]}


EFA_DEVICE_PLUGIN: Final = "v0.5.20"
"""Image tag; chart 0.5.30. Lists every instance type of our table (aws-do-eks#56)."""
NVIDIA_DEVICE_PLUGIN: Final = "v0.20.0"
"""0.19.0 to 0.19.2 take /dev/infiniband from the EFA plugin by default (mofed)."""
BUSYBOX: Final = "1.37.0"
"""Image tag. Makes the file system's two directories, once."""
KUBECTL: Final = "1.35"
"""Of the layer that applies the charts; kubectl covers one minor version either way."""
CODEBUILD_IMAGE: Final = "aws/codebuild/standard:7.0"
LUSTRE: Final = "2.15"
"""FileSystemTypeVersion."""
