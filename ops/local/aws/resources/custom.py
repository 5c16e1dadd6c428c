"""Custom resources of the CDK's kubectl provider: its function is never run, its work is done here.

moto would send every `Custom::*` to a Lambda in Docker. Any other custom resource has no model, so its
stack is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from urllib3.exceptions import HTTPError

from ops.local.aws.cloudformation.errors import ResourceError
from ops.local.aws.helm import Helm, binary_from
from ops.local.aws.kubectl import Kubectl, Object, message_of
from ops.local.aws.resources.base import Attributes, Context, Made, Properties, ResourceModel
from ops.local.aws.services.functions import layer_content
from ops.local.aws.settings import LIVE

LOG = logging.getLogger(__name__)
KUBERNETES_ERRORS = (ApiException, ConfigException, ResourceNotFoundError, HTTPError, OSError)


def failed(message: str) -> ResourceError:
    """A failure as CloudFormation reports one that a custom resource's handler sent."""
    return ResourceError(
        f"Received response status [FAILED] from custom resource. Message returned: Error: {message}"
    )


def kubeconfig_for(ctx: Context) -> Path:
    """The cluster's kubeconfig, if the provider's function exists and the cluster lets its role in."""
    token, cluster = ctx.properties["ServiceToken"], ctx.properties["ClusterName"]
    try:
        role = handler_of(ctx.client("lambda"), token)["Role"]
        entries = ctx.client("eks").list_access_entries(clusterName=cluster)["accessEntries"]
    except ClientError as error:
        raise failed(error.response["Error"]["Message"]) from error
    if role not in entries and ctx.properties.get("RoleArn") not in entries:
        raise failed("error: You must be logged in to the server (Unauthorized)")
    if LIVE.current.kubeconfig is None:
        raise failed(f"error: no local Kubernetes stands behind the cluster {cluster}")
    return LIVE.current.kubeconfig


def kubectl_for(ctx: Context) -> Kubectl:
    """The cluster, for the provider's function."""
    try:
        return Kubectl(kubeconfig_for(ctx))
    except KUBERNETES_ERRORS as error:
        raise failed(message_of(error)) from error


def handler_of(functions: Any, token: str) -> dict[str, Any]:
    """The function that would run kubectl: the provider's framework calls it."""
    framework: dict[str, Any] = functions.get_function(FunctionName=token)["Configuration"]
    handler = framework.get("Environment", {}).get("Variables", {}).get("USER_ON_EVENT_FUNCTION_ARN")
    if handler is None:
        return framework
    found: dict[str, Any] = functions.get_function(FunctionName=handler)["Configuration"]
    return found


def attempt(work: Callable[[], None]) -> None:
    """Runs kubectl's work; what Kubernetes refuses fails the resource."""
    try:
        work()
    except KUBERNETES_ERRORS as error:
        raise failed(message_of(error)) from error


def objects(properties: Properties) -> list[Object]:
    """The manifest's objects."""
    manifest: Any = json.loads(properties["Manifest"])
    return list(manifest) if isinstance(manifest, list) else [manifest]


class KubernetesResource(ResourceModel):
    """A manifest of the CDK in the cluster."""

    type = "Custom::AWSCDK-EKS-KubernetesResource"

    def create(self, ctx: Context) -> Made:
        """Creates the objects, or applies them where `Overwrite` says so."""
        kubectl, wanted = kubectl_for(ctx), objects(ctx.properties)
        made = Made(ctx.name())
        ctx.claim(made)
        overwrite = str(ctx.properties.get("Overwrite", False)).lower() == "true"
        attempt(lambda: (kubectl.apply if overwrite else kubectl.create)(wanted))
        return made

    def update(self, ctx: Context) -> Attributes:
        """Applies the objects and prunes what the manifest has no more."""
        kubectl, wanted = kubectl_for(ctx), objects(ctx.properties)
        attempt(lambda: kubectl.apply(wanted))
        label = ctx.properties.get("PruneLabel")
        if label:
            attempt(lambda: kubectl.prune(label, wanted))
        return {}

    def delete(self, ctx: Context) -> None:
        """Deletes the objects; like the real handler it needs the cluster, and only logs what kubectl says."""
        kubectl = kubectl_for(ctx)
        try:
            attempt(lambda: kubectl.delete(objects(ctx.properties)))
        except ResourceError as error:
            LOG.warning("delete error: %s", error)


class HelmChart(ResourceModel):
    """A chart of the CDK in the cluster, rendered by the helm of the provider's own layer."""

    type = "Custom::AWSCDK-EKS-HelmChart"

    def create(self, ctx: Context) -> Made:
        """Applies the chart's objects."""
        kubectl, wanted = kubectl_for(ctx), self._render(ctx, ctx.properties)
        made = Made(ctx.name())
        ctx.claim(made)
        attempt(lambda: kubectl.apply(wanted))
        return made

    def update(self, ctx: Context) -> Attributes:
        """Applies the new objects and deletes those that the chart has no more."""
        kubectl = kubectl_for(ctx)
        before, after = self._render(ctx, ctx.old), self._render(ctx, ctx.properties)
        attempt(lambda: kubectl.replace(before, after))
        return {}

    def delete(self, ctx: Context) -> None:
        """Deletes the chart's objects; like the real handler it only logs what fails."""
        kubectl = kubectl_for(ctx)
        try:
            unwanted = self._render(ctx, ctx.properties)
            attempt(lambda: kubectl.delete(unwanted))
        except ResourceError as error:
            LOG.warning("delete error: %s", error)

    @staticmethod
    def _render(ctx: Context, properties: Properties) -> list[Object]:
        handler = handler_of(ctx.client("lambda"), properties["ServiceToken"])
        layers = [layer_content(ctx.region, layer["Arn"]) for layer in handler.get("Layers", [])]
        url = properties.get("ChartAssetURL")
        try:
            helm = Helm(binary_from(layers, kubeconfig_for(ctx).parent / "helm"))
            return helm.render(properties, _asset(ctx, url) if url else None)
        except ResourceError as error:
            raise failed(str(error)) from error


def _asset(ctx: Context, url: str) -> bytes:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    content: bytes = ctx.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    return content
