"""What FSx for Lustre refuses, one by one."""

from __future__ import annotations

from typing import Any

import pytest
from moto.core.exceptions import ServiceException

from ops.local.aws.services import fsx_rules as rules

pytestmark = pytest.mark.unit


def asked(capacity: int = 1200, throughput: int = 250, **lustre: Any) -> dict[str, Any]:
    return {
        "FileSystemType": "LUSTRE",
        "StorageCapacity": capacity,
        "StorageType": "SSD",
        "SubnetIds": ["subnet-1"],
        "LustreConfiguration": {
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": throughput,
            **lustre,
        },
    }


EFA = {"EfaEnabled": True, "MetadataConfiguration": {"Mode": "AUTOMATIC"}}


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (asked(1300), "Invalid Lustre FS storage capacity: 1300. Must be 1200 or a multiple of 2400."),
        (asked(throughput=300), "the provided throughput is invalid"),
        (asked(DeploymentType="PERSISTENT_3"), "Invalid Lustre deployment type"),
        (asked(ImportPath="s3://b"), "ImportPath and ExportPath are not supported"),
        (asked(EfaEnabled=True), "EFA is only supported for PERSISTENT_2 filesystems with metadata configuration"),
        (asked(4800, 250, **EFA), "must be a multiple of 19200"),
        (asked(38400, 500, **EFA) | {"SubnetIds": ["a", "b"]}, "Exactly 1 subnet IDs are required"),
        (asked(MetadataConfiguration={"Mode": "USER_PROVISIONED", "Iops": 1}), "Invalid metadata IOPS"),
    ],
)
def test_refused_before_anything_exists(request_: dict[str, Any], reason: str) -> None:
    with pytest.raises(ServiceException, match=reason):
        rules.check_creation("us-east-1", request_, [])


HDD = {"DeploymentType": "PERSISTENT_1"}


@pytest.mark.parametrize("deployment", ["PERSISTENT_2", "PERSISTENT_1", "SCRATCH_2"])
def test_capacities_on_ssd_are_1200_and_multiples_of_2400(
    deployment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The multiples of 3600 are of SCRATCH_1 alone (StorageCapacity of CreateFileSystem)."""
    monkeypatch.setattr(rules, "_check_security_groups", lambda *_: None)
    throughput = {"PERSISTENT_2": 250, "PERSISTENT_1": 100}.get(deployment, 0)
    for capacity in (1200, 2400, 4800, 7200, 9600, 12000):
        rules.check_creation("us-east-1", asked(capacity, throughput, DeploymentType=deployment), [])
    for capacity in (0, 600, 3600, 6000, 10800, 18000):
        with pytest.raises(ServiceException, match=f"{capacity}. Must be 1200 or a multiple of 2400"):
            rules.check_creation("us-east-1", asked(capacity, throughput, DeploymentType=deployment), [])


@pytest.mark.parametrize(
    ("request_", "fits", "words"),
    [
        (asked(DeploymentType="SCRATCH_1"), (1200, 2400, 3600, 7200, 10800), "1200, 2400 or a multiple of 3600"),
        (asked(throughput=12, **HDD) | {"StorageType": "HDD"}, (6000, 12000), "Must be a multiple of 6000"),
        (asked(throughput=40, **HDD) | {"StorageType": "HDD"}, (1800, 3600), "Must be a multiple of 1800"),
    ],
)
def test_capacities_of_other_kinds(
    request_: dict[str, Any], fits: tuple[int, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "_check_security_groups", lambda *_: None)
    for capacity in fits:
        rules.check_creation("us-east-1", request_ | {"StorageCapacity": capacity}, [])
    with pytest.raises(ServiceException, match=words):
        rules.check_creation("us-east-1", request_ | {"StorageCapacity": 4800}, [])


@pytest.mark.parametrize(
    ("request_", "servers"),
    [(asked(1200), 1), (asked(7200), 3), (asked(38400, 500, **EFA), 4), (asked(38400, 125, **EFA), 1)],
)
def test_an_object_server_has_an_interface(request_: dict[str, Any], servers: int) -> None:
    assert rules.servers(request_) == servers


@pytest.mark.parametrize(
    ("path", "prefix", "fits"),
    [("/runs", "s3://b/runs", True), ("/data/x", "s3://b/other", False), ("/other", "s3://b/data/", False)],
)
def test_associations_do_not_overlap(path: str, prefix: str, fits: bool) -> None:
    there = {"AssociationId": "dra-1", "FileSystemPath": "/data", "DataRepositoryPath": "s3://b/data"}
    new = {"FileSystemPath": path, "DataRepositoryPath": prefix}
    if fits:
        rules.check_association([there], new)
    else:
        with pytest.raises(ServiceException, match="overlaps with"):
            rules.check_association([there], new)
