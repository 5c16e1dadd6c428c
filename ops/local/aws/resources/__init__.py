"""What CloudFormation can make: one model for each resource type."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from ops.local.aws.resources.base import ResourceModel

MODULES = [
    "cdk_metadata",
    "cloudwatch",
    "codebuild",
    "custom",
    "ec2_network",
    "ec2_security",
    "ec2_compute",
    "ecr",
    "eks",
    "eks_nodes",
    "events",
    "fsx",
    "iam",
    "kms",
    "lambda_functions",
    "logs",
    "s3",
    "scheduler",
    "sns",
    "ssm",
]


@lru_cache(maxsize=1)
def _models() -> dict[str, ResourceModel]:
    for module in MODULES:
        importlib.import_module(f"{__name__}.{module}")
    return {model.type: model() for model in _concrete(ResourceModel)}


def _concrete(base: Any) -> list[Any]:
    found = [base] if "type" in vars(base) else []
    return found + [model for child in base.__subclasses__() for model in _concrete(child)]


def find(resource_type: str) -> ResourceModel | None:
    """The model of the type, or None where this emulator has none."""
    return _models().get(resource_type)


def types() -> list[str]:
    """Every type that can be made here."""
    return sorted(_models())
