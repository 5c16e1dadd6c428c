"""Custom resources of the CDK's kubectl provider: its function is never run, its work is done here.

moto would send every `Custom::*` to a Lambda in Docker. Any other custom resource has no model, so its
stack is refused.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from urllib3.exceptions import HTTPError

from ops.local.aws.cloudformation.errors import ResourceError
from ops.local.aws.kubectl import Kubectl, Object, message_of
from ops.local.aws.resources.base import Attributes, Context, Made, Properties, ResourceModel
from ops.local.aws.settings import LIVE

LOG = logging.getLogger(__name__)
KUBERNETES_ERRORS = (ApiException, ConfigException, ResourceNotFoundError, HTTPError, OSError)


def failed(message: str) -> ResourceError:
    """A failure as CloudFormation reports one that a custom resource's handler sent."""
    return ResourceError(
        f"Received response status [FAILED] from custom resource. Message returned: Error: {message}"
    )


def kubectl_for(ctx: Context, properties: Properties) -> Kubectl:
    """The cluster, if the provider's function exists and the cluster lets its role in."""
    token, cluster = properties["ServiceToken"], properties["ClusterName"]
    try:
        role = _handler_role(ctx.client("lambda"), token)
        entries = ctx.client("eks").list_access_entries(clusterName=cluster)["accessEntries"]
    except ClientError as error:
        raise failed(error.response["Error"]["Message"]) from error
    if role not in entries and properties.get("RoleArn") not in entries:
        raise failed("error: You must be logged in to the server (Unauthorized)")
    kubeconfig = LIVE.current.kubeconfig
    if kubeconfig is None:
        raise failed(f"error: no local Kubernetes stands behind the cluster {cluster}")
    try:
        return Kubectl(kubeconfig)
    except KUBERNETES_ERRORS as error:
        raise failed(message_of(error)) from error


def _handler_role(functions: Any, token: str) -> str:
    """The role of the function that would run kubectl: the provider's framework calls it."""
    framework = functions.get_function(FunctionName=token)["Configuration"]
    handler = framework.get("Environment", {}).get("Variables", {}).get("USER_ON_EVENT_FUNCTION_ARN")
    if handler is None:
        return str(framework["Role"])
    return str(functions.get_function(FunctionName=handler)["Configuration"]["Role"])


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
        kubectl, wanted = kubectl_for(ctx, ctx.properties), objects(ctx.properties)
        made = Made(ctx.name())
        ctx.claim(made)
        overwrite = str(ctx.properties.get("Overwrite", False)).lower() == "true"
        attempt(lambda: (kubectl.apply if overwrite else kubectl.create)(wanted))
        return made

    def update(self, ctx: Context) -> Attributes:
        """Applies the objects and prunes what the manifest has no more."""
        kubectl, wanted = kubectl_for(ctx, ctx.properties), objects(ctx.properties)
        attempt(lambda: kubectl.apply(wanted))
        label = ctx.properties.get("PruneLabel")
        if label:
            attempt(lambda: kubectl.prune(label, wanted))
        return {}

    def delete(self, ctx: Context) -> None:
        """Deletes the objects; like the real handler it needs the cluster, and only logs what kubectl says."""
        kubectl = kubectl_for(ctx, ctx.properties)
        try:
            attempt(lambda: kubectl.delete(objects(ctx.properties)))
        except ResourceError as error:
            LOG.warning("delete error: %s", error)
