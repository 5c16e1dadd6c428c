"""AWS's own schemas decide what a type accepts and what replaces it."""

from __future__ import annotations

from typing import Any

import pytest

from ops.local.aws.cloudformation import schemas

pytestmark = pytest.mark.unit

REGION = "us-east-1"
GROUP = {"ClusterName": "c", "NodeRole": "arn:aws:iam::123456789012:role/r", "Subnets": ["subnet-1"]}


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (GROUP, []),
        ({**GROUP, "ScalingConfig": {"DesiredSize": "2"}}, []),
        ({"ClusterName": "c", "NodeRole": "r"}, ["#: required key [Subnets] not found"]),
        ({**GROUP, "Subnet": ["x"]}, ["#: extraneous key [Subnet] is not permitted"]),
        (
            {**GROUP, "ScalingConfig": {"MinSize": -1}},
            ["#/ScalingConfig/MinSize: -1 is not greater or equal to 0"],
        ),
        (
            {**GROUP, "ScalingConfig": {"MinSize": "many"}},
            ["#/ScalingConfig/MinSize: expected type: integer, found: str"],
        ),
    ],
)
def test_properties_are_judged_in_cloudformations_words(properties: dict[str, Any], expected: list[str]) -> None:
    assert schemas.violations("AWS::EKS::Nodegroup", REGION, properties) == expected


@pytest.mark.parametrize(
    ("resource_type", "changed", "replaced"),
    [
        ("AWS::EKS::Nodegroup", {"AmiType": "AL2023_x86_64_NVIDIA"}, ["AmiType"]),
        ("AWS::EKS::Nodegroup", {"Labels": {"a": "b"}}, []),
        ("AWS::FSx::FileSystem", {"SubnetIds": ["subnet-2"]}, ["SubnetIds"]),
        ("AWS::FSx::FileSystem", {"StorageCapacity": 2400}, []),
        ("AWS::EC2::Subnet", {"AvailabilityZone": "us-east-1b"}, ["AvailabilityZone"]),
        ("AWS::S3::Bucket", {"BucketName": "other"}, ["BucketName"]),
        ("AWS::EKS::Cluster", {"EncryptionConfig": [{"Resources": ["secrets"]}]}, ["EncryptionConfig"]),
    ],
)
def test_replacement_is_aws_own_decision(resource_type: str, changed: dict[str, Any], replaced: list[str]) -> None:
    schema = schemas.schema_of(resource_type, REGION)
    assert schema is not None
    found = schemas.is_replaced(schema, {}, changed)
    assert sorted({path.split("/")[0] for path in found}) == replaced


def test_custom_resources_have_no_schema() -> None:
    assert schemas.schema_of("Custom::AWSCDK-EKS-KubernetesResource", REGION) is None
    assert schemas.schema_of("AWS::Nothing::AtAll", REGION) is None


def test_every_model_is_of_a_type_that_aws_has() -> None:
    from ops.local.aws import resources

    unknown = [
        name
        for name in resources.types()
        if not name.startswith(("Custom::", "AWS::CDK::", "AWS::CloudFormation::"))
        and schemas.schema_of(name, REGION) is None
    ]
    assert unknown == []
