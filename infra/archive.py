"""What outlives an environment: the bucket with checkpoints and inputs, and the image registry."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_s3 as s3
from constructs import Construct

from environments.environment import Environment
from infra.image_build import ImageBuild
from infra.naming import accept, bucket_name, pin


class Archive(Construct):
    """Bucket and repository, each made here or adopted by name from an earlier life."""

    def __init__(self, scope: Construct, id: str, env: Environment) -> None:
        super().__init__(scope, id)
        self._env = env
        self.bucket = self._adopt_bucket() if env.archive.adopt else self._build_bucket()
        self.repository = self._adopt_repository() if env.archive.adopt_repository else self._build_repository()
        if env.archive.codebuild:
            ImageBuild(self, "ImageBuild", env, bucket=self.bucket, repository=self.repository)

    def _adopt_bucket(self) -> s3.IBucket:
        return s3.Bucket.from_bucket_name(self, "Bucket", bucket_name(self._env))

    def _build_bucket(self) -> s3.Bucket:
        bucket = s3.Bucket(
            self,
            "Bucket",
            bucket_name=bucket_name(self._env),
            versioned=True,
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            removal_policy=cdk.RemovalPolicy.RETAIN,
            lifecycle_rules=[self._lifecycle()],
        )
        pin(bucket, "ArchiveBucket")
        accept(
            bucket, "Object-level logs are the account's CloudTrail; a log bucket would have to outlive this", "S1"
        )
        return bucket

    def _lifecycle(self) -> s3.LifecycleRule:
        """Only into a class that is read at once: FSx cannot read Glacier objects, and exports there fail."""
        return s3.LifecycleRule(
            id="archive",
            transitions=[
                s3.Transition(
                    storage_class=s3.StorageClass.INTELLIGENT_TIERING, transition_after=cdk.Duration.days(0)
                )
            ],
            noncurrent_version_expiration=cdk.Duration.days(self._env.archive.noncurrent_days),
            abort_incomplete_multipart_upload_after=cdk.Duration.days(7),
            expired_object_delete_marker=True,
        )

    def _adopt_repository(self) -> ecr.IRepository:
        return ecr.Repository.from_repository_name(self, "Repository", self._env.repository)

    def _build_repository(self) -> ecr.Repository:
        repository = ecr.Repository(
            self,
            "Repository",
            repository_name=self._env.repository,
            image_scan_on_push=True,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        pin(repository, "Repository")
        return repository
