"""A CodeBuild project that builds the training image where there is no container engine."""

from __future__ import annotations

import json
from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs_
from aws_cdk import aws_s3 as s3
from constructs import Construct

from environments.environment import Environment
from environments.versions import CODEBUILD_IMAGE
from infra.naming import accept, service_principal
from infra.observability import build_logs, log_group

SOURCE_KEY = "build/source.zip"
"""Below the archive's prefix: `steadfast image push` puts the working tree there."""
PROJECT = "image"


def source_key(env: Environment) -> str:
    """The source's key in the archive bucket."""
    return f"{env.archive.prefix}/{SOURCE_KEY}"


def project_name(env: Environment) -> str:
    """The project's name."""
    return f"{env.name}-{PROJECT}"


class ImageBuild(Construct):
    """Source from the archive, result into the registry; the digest is the build's exported variable."""

    def __init__(
        self, scope: Construct, id: str, env: Environment, *, bucket: s3.IBucket, repository: ecr.IRepository
    ) -> None:
        super().__init__(scope, id)
        logs = log_group(self, "Logs", env, build_logs(env))
        role = self._build_role(logs, bucket.arn_for_objects(source_key(env)), repository.repository_arn)
        types = codebuild.CfnProject
        project = types(
            self,
            "Project",
            name=project_name(env),
            description=f"Training image of environment {env.name}",
            service_role=role.role_arn,
            artifacts=types.ArtifactsProperty(type="NO_ARTIFACTS"),
            source=types.SourceProperty(
                type="S3",
                location=f"{bucket.bucket_name}/{source_key(env)}",
                build_spec=json.dumps(_SPEC, indent=1),
            ),
            environment=types.EnvironmentProperty(
                type="LINUX_CONTAINER",
                compute_type="BUILD_GENERAL1_2XLARGE",
                image=CODEBUILD_IMAGE,
                privileged_mode=True,
                environment_variables=[
                    types.EnvironmentVariableProperty(name="REPOSITORY", value=repository.repository_uri)
                ],
            ),
            logs_config=types.LogsConfigProperty(
                cloud_watch_logs=types.CloudWatchLogsConfigProperty(
                    status="ENABLED", group_name=logs.log_group_name
                )
            ),
            timeout_in_minutes=120,
        )
        accept(project, "It keeps no artifacts; source and image are encrypted where they lie", "CB4")
        accept(project, "An image is built by a container engine, which needs it", "CB3")

    def _build_role(self, logs: logs_.ILogGroup, source: str, repository: str) -> iam.Role:
        """Read one object, write one log group, push to one repository."""
        allowed = (
            (["s3:GetObject", "s3:GetObjectVersion"], source),
            (["logs:CreateLogStream", "logs:PutLogEvents"], logs.log_group_arn),
            (list(_PUSH), repository),
            (["ecr:GetAuthorizationToken"], "*"),
        )
        rights = [iam.PolicyStatement(actions=actions, resources=[resource]) for actions, resource in allowed]
        role = iam.Role(
            self,
            "Role",
            assumed_by=service_principal("codebuild"),
            inline_policies={"build": iam.PolicyDocument(statements=rights)},
        )
        group = cdk.Stack.of(self).get_logical_id(cast(cdk.CfnElement, logs.node.default_child))
        token = "a registry token belongs to no repository, and streams lie below their group"
        accept(role, token, "IAM5[Resource::*]", f"IAM5[Resource::<{group}.Arn>]")
        return role


_PUSH = (
    "ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:CompleteLayerUpload", "ecr:DescribeImages",
    "ecr:GetDownloadUrlForLayer", "ecr:InitiateLayerUpload", "ecr:PutImage", "ecr:UploadLayerPart",
)  # fmt: skip
_SPEC = {
    "version": "0.2",
    "env": {"exported-variables": ["IMAGE"]},
    "phases": {
        "pre_build": {
            "commands": [
                'aws ecr get-login-password | docker login --username AWS --password-stdin "${REPOSITORY%%/*}"'
            ]
        },
        "build": {
            "commands": [
                'docker build --file docker/Dockerfile --tag "$REPOSITORY:$TAG" .',
                'docker push "$REPOSITORY:$TAG"',
            ]
        },
        "post_build": {
            "commands": [
                'export IMAGE="$(docker image inspect --format "{{index .RepoDigests 0}}" "$REPOSITORY:$TAG")"'
            ]
        },
    },
}
