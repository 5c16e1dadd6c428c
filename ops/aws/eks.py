"""The cluster's API from outside: who we are to it, its kubeconfig, and the size of its GPU node group."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner

from ops.aws.access import Aws, error_code
from ops.errors import CloudError
from ops.files import write_atomically

TOKEN_LIFE_S = 60
TOKEN_PREFIX = "k8s-aws-v1."
NOT_DEPLOYED = "`steadfast deploy` makes it"


@dataclass(frozen=True)
class NodeGroup:
    """The GPU node group's size and state."""

    status: str
    desired: int
    maximum: int
    problems: list[str]


def describe_cluster(aws: Aws) -> dict[str, Any] | None:
    """None when there is no cluster."""
    try:
        found: dict[str, Any] = aws.client("eks").describe_cluster(name=aws.environment.name)["cluster"]
    except ClientError as error:
        if error_code(error) == "ResourceNotFoundException":
            return None
        raise
    return found


def cluster_or_error(aws: Aws) -> dict[str, Any]:
    """Raises CloudError when there is no active cluster."""
    found = describe_cluster(aws)
    if found is None or found["status"] != "ACTIVE":
        state = found["status"] if found else "not deployed"
        raise CloudError(f"the cluster {aws.environment.name} is {state}", fix=NOT_DEPLOYED)
    return found


def write_kubeconfig(aws: Aws, path: Path) -> None:
    """For kubectl and every client library; credentials are asked of the AWS command line at each use."""
    found = cluster_or_error(aws)
    name = aws.environment.name
    profile = [{"name": "AWS_PROFILE", "value": aws.environment.profile}] if aws.environment.profile else None
    credentials = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": [
            "--region",
            aws.environment.region,
            "eks",
            "get-token",
            "--cluster-name",
            name,
            "--output",
            "json",
        ],
        "env": profile,
        "interactiveMode": "IfAvailable",
    }
    cluster = {"server": found["endpoint"], "certificate-authority-data": found["certificateAuthority"]["data"]}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"exec": credentials}}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": aws.environment.namespace}}
        ],
        "current-context": name,
    }
    write_atomically(path, yaml.safe_dump(content, sort_keys=False))
    path.chmod(0o600)


def token(aws: Aws) -> str:
    """A bearer token: a presigned GetCallerIdentity that names the cluster, as EKS's webhook expects it."""
    sts = aws.session.client("sts", region_name=aws.environment.region)
    signer = RequestSigner(
        sts.meta.service_model.service_id,
        aws.environment.region,
        "sts",
        "v4",
        aws.session.get_credentials(),
        aws.session.events,
    )
    request = {
        "method": "GET",
        "url": f"https://sts.{aws.environment.region}.amazonaws.com/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": aws.environment.name},
        "context": {},
    }
    url = signer.generate_presigned_url(
        request, region_name=aws.environment.region, expires_in=TOKEN_LIFE_S, operation_name=""
    )
    return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def node_group(aws: Aws) -> NodeGroup | None:
    """None when there is none."""
    environment = aws.environment
    try:
        found = aws.client("eks").describe_nodegroup(
            clusterName=environment.name, nodegroupName=environment.node_group
        )["nodegroup"]
    except ClientError as error:
        if error_code(error) == "ResourceNotFoundException":
            return None
        raise
    issues = found.get("health", {}).get("issues", [])
    sizes = found["scalingConfig"]
    return NodeGroup(
        status=found["status"],
        desired=sizes["desiredSize"],
        maximum=sizes["maxSize"],
        problems=[f"{issue['code']}: {issue['message']}" for issue in issues],
    )


def scale(aws: Aws, nodes: int, *, limit_s: float, poll_s: float = 5.0) -> NodeGroup:
    """Set the GPU node group's size and wait until EKS has taken it. Raises CloudError with EKS's reasons."""
    environment = aws.environment
    client = aws.client("eks")
    names = {"clusterName": environment.name, "nodegroupName": environment.node_group}
    update = client.update_nodegroup_config(**names, scalingConfig={"desiredSize": nodes})["update"]
    deadline_s = time.monotonic() + limit_s
    while True:
        group = node_group(aws)
        state = client.describe_update(
            name=environment.name, nodegroupName=environment.node_group, updateId=update["id"]
        )["update"]
        if state["status"] in ("Failed", "Cancelled"):
            reasons = [f"{item['errorCode']}: {item['errorMessage']}" for item in state.get("errors", [])]
            raise CloudError(f"EKS could not scale {environment.node_group}", details=reasons)
        if group and group.problems:
            raise CloudError(f"{environment.node_group} is not healthy", details=group.problems)
        if group and state["status"] == "Successful" and group.status == "ACTIVE":
            return group
        if time.monotonic() > deadline_s:
            raise CloudError(f"{environment.node_group} is not at {nodes} nodes after {limit_s:.0f} s")
        time.sleep(poll_s)
