"""Records of CloudFormation and the CDK that are no resources of AWS."""

from __future__ import annotations

from ops.local.aws.resources.base import Attributes, Context, Made, ResourceModel


class CdkMetadata(ResourceModel):
    """What the CDK notes about itself."""

    type = "AWS::CDK::Metadata"

    def create(self, ctx: Context) -> Made:
        """A name and nothing behind it, as in AWS."""
        return Made(ctx.name())

    def update(self, _: Context) -> Attributes:
        """Nothing to change."""
        return {}

    def delete(self, _: Context) -> None:
        """Nothing to remove."""


class WaitConditionHandle(CdkMetadata):
    """A handle that nothing signals."""

    type = "AWS::CloudFormation::WaitConditionHandle"
