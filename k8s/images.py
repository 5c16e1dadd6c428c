"""Images of what runs in the cluster beside us, and the registry that each comes from.

With `network.egress: endpoints` nodes reach no public registry: every image comes from the environment's own,
under the same name and tag (docs/job.md says how to put them there).
"""

from __future__ import annotations

from environments.environment import Environment
from environments.versions import BUSYBOX, EFA_DEVICE_PLUGIN, NVIDIA_DEVICE_PLUGIN

EKS_ACCOUNT = "602401143452"
EKS_ACCOUNTS = {
    "af-south-1": "877085696533",
    "ap-east-1": "800184023465",
    "ap-southeast-3": "296578399912",
    "ap-southeast-4": "491585149902",
    "ap-southeast-5": "151610086707",
    "ap-south-2": "900889452093",
    "ca-west-1": "761377655185",
    "eu-central-2": "900612956339",
    "eu-south-1": "590381155156",
    "eu-south-2": "455263428931",
    "il-central-1": "066635153087",
    "me-central-1": "759879836304",
    "me-south-1": "558608220178",
    "us-gov-east-1": "151742754352",
    "us-gov-west-1": "013241004608",
}
"""Regions whose EKS images are in another account than everywhere else (EKS guide, "Amazon container image
registries")."""


def eks_registry(region: str) -> str:
    """Host of the registry with EKS's own images in a region."""
    return f"{EKS_ACCOUNTS.get(region, EKS_ACCOUNT)}.dkr.ecr.{region}.amazonaws.com"


def efa_device_plugin(environment: Environment) -> str:
    """The EFA device plug-in's image. EKS's registry is reached by the ecr endpoints, so also without NAT."""
    return f"{eks_registry(environment.region)}/eks/aws-efa-k8s-device-plugin:{EFA_DEVICE_PLUGIN}"


def nvidia_device_plugin(environment: Environment) -> str:
    """The NVIDIA device plug-in's image."""
    return _image(environment, "nvcr.io", "nvidia/k8s-device-plugin", NVIDIA_DEVICE_PLUGIN)


def busybox(environment: Environment) -> str:
    """A shell with mkdir and chmod."""
    return _image(environment, "public.ecr.aws", "docker/library/busybox", BUSYBOX)


def _image(environment: Environment, public_registry: str, name: str, tag: str) -> str:
    if environment.network.egress == "endpoints":
        return f"{own_registry(environment)}/{environment.repository}:{name.rsplit('/', 1)[-1]}-{tag}"
    return f"{public_registry}/{name}:{tag}"


def own_registry(environment: Environment) -> str:
    """Host of the account's own registry. Raises ValueError when the file names no account."""
    if environment.account is None:
        raise ValueError(
            f"{environment.name}: account: must be given with network.egress: endpoints, since images then come "
            f"from the account's own registry"
        )
    return f"{environment.account}.dkr.ecr.{environment.region}.amazonaws.com"
