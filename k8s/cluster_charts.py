"""What a cluster holds before the first run: device plug-ins, namespace, volume, who may do what."""

from __future__ import annotations

from itertools import pairwise

import cdk8s

from environments.environment import Environment
from k8s.device_plugins import device_plugin_manifests
from k8s.manifest import Manifest, chart_of
from k8s.namespace import access_manifests, namespace_manifests
from k8s.rules import check
from k8s.secrets import secrets_manifests
from k8s.storage import LustreVolume, claim, layout_job, volume

__all__ = ["LustreVolume", "cluster_charts"]


def cluster_charts(app: cdk8s.App, environment: Environment, volume_: LustreVolume) -> list[cdk8s.Chart]:
    """The charts in the order in which they must be applied; each depends on the one before.

    `volume_` may hold CDK tokens: infra passes the charts to the cluster's kubectl provider, which lets
    CloudFormation fill them in.
    """
    groups = {name: group for name, group in _groups(environment, volume_) if group}
    check(environment, [document for group in groups.values() for document in group])
    charts = [chart_of(app, name, group) for name, group in groups.items()]
    for first, second in pairwise(charts):
        second.add_dependency(first)
    return charts


def _groups(environment: Environment, lustre: LustreVolume) -> list[tuple[str, list[Manifest]]]:
    return [
        ("device-plugins", device_plugin_manifests(environment)),
        ("namespace", namespace_manifests(environment)),
        ("access", access_manifests(environment)),
        ("storage", [volume(environment, lustre), claim(environment), layout_job(environment)]),
        ("secrets", secrets_manifests(environment)),
    ]
