"""boto3 clients of the emulated AWS, for its own use."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import boto3
from botocore.config import Config

CREDENTIALS = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "local"}
_endpoint = ""


def use_endpoint(url: str) -> None:
    """Sets the address of the server; before the first client."""
    global _endpoint
    _endpoint = url


@lru_cache
def client(service: str, region: str) -> Any:
    """The client of a service in a region; it tries throttled calls again, as CloudFormation does."""
    config = Config(
        retries={"max_attempts": 10, "mode": "standard"},
        max_pool_connections=32,
        s3={"addressing_style": "path"},
        parameter_validation=True,
        read_timeout=120,
    )
    return boto3.session.Session(region_name=region, **CREDENTIALS).client(
        service, endpoint_url=_endpoint, config=config
    )
