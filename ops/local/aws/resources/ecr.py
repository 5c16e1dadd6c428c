"""Repositories of container images."""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)


class Repository(ResourceModel):
    """A repository with its lifecycle and access policies."""

    type = "AWS::ECR::Repository"

    def create(self, ctx: Context) -> Made:
        """Makes the repository."""
        name = ctx.properties.get("RepositoryName") or ctx.name(200, lower=True)
        found = ctx.client("ecr").create_repository(
            repositoryName=name,
            tags=ctx.tag_list(ctx.properties.get("Tags")),
            imageTagMutability=ctx.properties.get("ImageTagMutability", "MUTABLE"),
            imageScanningConfiguration=_scanning(ctx.properties),
        )["repository"]
        made = self._made(found)
        ctx.claim(made)
        self._policies(ctx, name, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Changes policies, scanning and mutability."""
        ecr = ctx.client("ecr")
        ecr.put_image_tag_mutability(
            repositoryName=ctx.physical_id, imageTagMutability=ctx.properties.get("ImageTagMutability", "MUTABLE")
        )
        ecr.put_image_scanning_configuration(
            repositoryName=ctx.physical_id, imageScanningConfiguration=_scanning(ctx.properties)
        )
        self._policies(ctx, ctx.physical_id, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the repository; ECR refuses while it holds images, unless EmptyOnDelete."""
        force = str(ctx.properties.get("EmptyOnDelete", False)).lower() == "true"
        with absent_is_fine():
            ctx.client("ecr").delete_repository(repositoryName=ctx.physical_id, force=force)

    def find(self, ctx: Context) -> Made | None:
        """The repository of that name, if it exists."""
        name = ctx.properties.get("RepositoryName")
        if not name:
            return None
        try:
            found = ctx.client("ecr").describe_repositories(repositoryNames=[name])["repositories"]
        except ClientError:
            return None
        return self._made(found[0])

    @staticmethod
    def _made(repository: dict[str, Any]) -> Made:
        return Made(
            repository["repositoryName"],
            {"Arn": repository["repositoryArn"], "RepositoryUri": repository["repositoryUri"]},
        )

    @staticmethod
    def _policies(ctx: Context, name: str, p: Properties) -> None:
        ecr = ctx.client("ecr")
        if "LifecyclePolicy" in p:
            ecr.put_lifecycle_policy(
                repositoryName=name, lifecyclePolicyText=p["LifecyclePolicy"]["LifecyclePolicyText"]
            )
        if "RepositoryPolicyText" in p:
            ecr.set_repository_policy(repositoryName=name, policyText=json.dumps(p["RepositoryPolicyText"]))


def _scanning(p: Properties) -> dict[str, bool]:
    asked = p.get("ImageScanningConfiguration", {}).get("ScanOnPush", False)
    return {"scanOnPush": str(asked).lower() == "true"}
