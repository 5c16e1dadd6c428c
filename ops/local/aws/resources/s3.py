"""S3 buckets and their policies."""

from __future__ import annotations

import json
from typing import Any

from ops.local.aws.cloudformation.errors import ResourceError, handler_reason
from ops.local.aws.resources.base import (
    Attributes,
    Context,
    Made,
    Properties,
    ResourceModel,
    absent_is_fine,
)


class Bucket(ResourceModel):
    """A bucket with encryption, versioning, lifecycle and public access block."""

    type = "AWS::S3::Bucket"

    def create(self, ctx: Context) -> Made:
        """Makes and configures the bucket."""
        s3 = ctx.client("s3")
        name = ctx.properties.get("BucketName") or ctx.name(63, lower=True)
        if self._owned(s3, name):  # in us-east-1 S3 itself would say yes to making one's own bucket again
            raise ResourceError(handler_reason(f"{name} already exists", "AlreadyExists"))
        place = {} if ctx.region == "us-east-1" else {"LocationConstraint": ctx.region}
        s3.create_bucket(Bucket=name, **({"CreateBucketConfiguration": place} if place else {}))
        made = Made(name, self._attributes(ctx, name))
        ctx.claim(made)
        self._configure(ctx, name, ctx.properties)
        return made

    def update(self, ctx: Context) -> Attributes:
        """Configures the bucket anew."""
        self._configure(ctx, ctx.physical_id, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Removes the bucket, which S3 refuses while it holds anything."""
        with absent_is_fine():
            ctx.client("s3").delete_bucket(Bucket=ctx.physical_id)

    def find(self, ctx: Context) -> Made | None:
        """The bucket of that name, if it exists."""
        name = ctx.properties.get("BucketName")
        if not name or not self._owned(ctx.client("s3"), name):
            return None
        self._configure(ctx, name, ctx.properties)
        return Made(name, self._attributes(ctx, name))

    @staticmethod
    def _owned(s3: Any, name: str) -> bool:
        return any(bucket["Name"] == name for bucket in s3.list_buckets()["Buckets"])

    @staticmethod
    def _attributes(ctx: Context, name: str) -> Attributes:
        return {
            "Arn": f"arn:aws:s3:::{name}",
            "DomainName": f"{name}.s3.amazonaws.com",
            "RegionalDomainName": f"{name}.s3.{ctx.region}.amazonaws.com",
            "DualStackDomainName": f"{name}.s3.dualstack.{ctx.region}.amazonaws.com",
            "WebsiteURL": f"http://{name}.s3-website-{ctx.region}.amazonaws.com",
        }

    def _configure(self, ctx: Context, name: str, p: Properties) -> None:
        s3 = ctx.client("s3")
        if "VersioningConfiguration" in p:
            s3.put_bucket_versioning(Bucket=name, VersioningConfiguration=dict(p["VersioningConfiguration"]))
        if "PublicAccessBlockConfiguration" in p:
            block = {k: _flag(v) for k, v in p["PublicAccessBlockConfiguration"].items()}
            s3.put_public_access_block(Bucket=name, PublicAccessBlockConfiguration=block)
        if "BucketEncryption" in p:
            s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration=_encryption(p))
        if "LifecycleConfiguration" in p:
            s3.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration=_lifecycle(p))
        # S3 refuses tags with the prefix aws: from anyone but AWS itself
        tags = [t for t in ctx.tag_list(p.get("Tags")) if not t["Key"].startswith("aws:")]
        if tags:
            s3.put_bucket_tagging(Bucket=name, Tagging={"TagSet": tags})


def _flag(value: Any) -> bool:
    return str(value).lower() == "true"


def _encryption(p: Properties) -> dict[str, Any]:
    rules = []
    for rule in p["BucketEncryption"]["ServerSideEncryptionConfiguration"]:
        default = rule.get("ServerSideEncryptionByDefault", {})
        rules.append(
            {
                "ApplyServerSideEncryptionByDefault": {
                    "SSEAlgorithm": default.get("SSEAlgorithm", "AES256"),
                    **({"KMSMasterKeyID": default["KMSMasterKeyID"]} if "KMSMasterKeyID" in default else {}),
                },
                "BucketKeyEnabled": _flag(rule.get("BucketKeyEnabled", False)),
            }
        )
    return {"Rules": rules}


def _lifecycle(p: Properties) -> dict[str, Any]:
    return {"Rules": [_lifecycle_rule(rule) for rule in p["LifecycleConfiguration"]["Rules"]]}


def _lifecycle_rule(rule: Properties) -> dict[str, Any]:
    made: dict[str, Any] = {"Status": rule["Status"], "Filter": {"Prefix": rule.get("Prefix", "")}}
    if "Id" in rule:
        made["ID"] = rule["Id"]
    if "ExpirationInDays" in rule:
        made["Expiration"] = {"Days": int(rule["ExpirationInDays"])}
    if "AbortIncompleteMultipartUpload" in rule:
        days = int(rule["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"])
        made["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": days}
    if "NoncurrentVersionExpiration" in rule:
        days = int(rule["NoncurrentVersionExpiration"]["NoncurrentDays"])
        made["NoncurrentVersionExpiration"] = {"NoncurrentDays": days}
    elif "NoncurrentVersionExpirationInDays" in rule:
        made["NoncurrentVersionExpiration"] = {"NoncurrentDays": int(rule["NoncurrentVersionExpirationInDays"])}
    transitions = [
        {"Days": int(t["TransitionInDays"]), "StorageClass": t["StorageClass"]}
        for t in rule.get("Transitions", ())
    ]
    return made | ({"Transitions": transitions} if transitions else {})


class BucketPolicy(ResourceModel):
    """The policy of a bucket."""

    type = "AWS::S3::BucketPolicy"

    def create(self, ctx: Context) -> Made:
        """Puts the policy on the bucket."""
        self._put(ctx, ctx.properties)
        return Made(ctx.properties["Bucket"], {"Bucket": ctx.properties["Bucket"]})

    def update(self, ctx: Context) -> Attributes:
        """Puts the new policy in place of the old one."""
        self._put(ctx, ctx.properties)
        return {}

    def delete(self, ctx: Context) -> None:
        """Takes the policy from the bucket."""
        with absent_is_fine():
            ctx.client("s3").delete_bucket_policy(Bucket=ctx.physical_id)

    @staticmethod
    def _put(ctx: Context, properties: Properties) -> None:
        document = json.dumps(properties["PolicyDocument"])
        ctx.client("s3").put_bucket_policy(Bucket=properties["Bucket"], Policy=document)
