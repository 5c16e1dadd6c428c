"""Archive, uploads, purge and checks against moto in this process."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from environments.environment import Environment, parse
from ops.aws import check
from ops.aws.access import Aws
from ops.aws.image import SOURCES, source_archive, tag
from ops.aws.inventory import Item, inventory, left_over, lines
from ops.aws.purge import delete_function_logs, delete_repository, empty_and_delete_bucket
from ops.aws.upload import check_data_set, put
from ops.aws.world import ArchivedRuns
from ops.data import write_part
from ops.errors import InvalidInputError

pytestmark = pytest.mark.integration


def small(**fields: object) -> Environment:
    base = {
        "name": "small",
        "region": "us-east-1",
        "availability_zone": "us-east-1a",
        "instance_type": "p5.48xlarge",
        "nodes": 2,
        "training": {"data": {"global_batch_size": 16}},
        "access": {"admins": ["arn:aws:iam::123456789012:role/Admin"]},
    }
    return parse({**base, **fields}, "small.yaml")


@pytest.fixture(name="aws")
def _aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with mock_aws():
        yield Aws(small(), boto3.Session(region_name="us-east-1"))


def make_bucket(aws: Aws) -> None:
    aws.client("s3").create_bucket(Bucket=aws.bucket)
    aws.client("s3").put_bucket_versioning(Bucket=aws.bucket, VersioningConfiguration={"Status": "Enabled"})


def test_the_bucket_has_the_account_and_the_region_in_its_name(aws: Aws) -> None:
    assert aws.bucket == "small-archive-123456789012-us-east-1"


def test_runs_are_read_back_from_the_archive_without_their_checkpoints(aws: Aws, tmp_path: Path) -> None:
    make_bucket(aws)
    runs = ArchivedRuns(aws, aws.bucket, "steadfast/runs/", tmp_path / "cache")
    assert runs.names() == [] and runs.run_json("first") is None
    for name, body in {
        "first/run.json": '{"run": "first"}',
        "first/events/a.jsonl": "{}\n",
        "first/checkpoints/step-00000010.1/__0_0.distcp": "big",
        "second/run.json": "{",
    }.items():
        aws.client("s3").put_object(Bucket=aws.bucket, Key=f"steadfast/runs/{name}", Body=body.encode())
    assert runs.names() == ["first", "second"]
    assert runs.run_json("first") == {"run": "first"}
    assert runs.run_json("second") is None
    root = runs.fetch("first")
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        "events/a.jsonl",
        "run.json",
    ]
    aws.client("s3").put_object(Bucket=aws.bucket, Key="steadfast/runs/first/events/b.jsonl", Body=b"")
    assert (runs.fetch("first") / "events" / "b.jsonl").exists()


def test_a_data_set_goes_up_once_and_its_index_last(aws: Aws, tmp_path: Path) -> None:
    make_bucket(aws)
    write_part(tmp_path / "train", [b"train" * 100])
    write_part(tmp_path / "eval", [b"eval" * 100])
    said: list[str] = []
    assert put(aws, tmp_path, said.append) == f"s3://{aws.bucket}/steadfast/input/"
    assert put(aws, tmp_path, said.append)
    assert said[:2] == ["sent: train/shard-00000.bin", "sent: eval/shard-00000.bin"]
    assert said[2:] == ["there already: train/shard-00000.bin", "there already: eval/shard-00000.bin"]
    keys = [item["Key"] for item in aws.client("s3").list_objects_v2(Bucket=aws.bucket)["Contents"]]
    assert "steadfast/input/train/index.json" in keys and len(keys) == 4
    assert [path.name for path in check_data_set(tmp_path)][-2:] == ["index.json", "index.json"]


def test_a_data_set_with_a_hole_is_refused_whole(tmp_path: Path) -> None:
    write_part(tmp_path / "train", [b"x"])
    (tmp_path / "train" / "shard-00000.bin").unlink()
    with pytest.raises(InvalidInputError) as refusal:
        check_data_set(tmp_path)
    assert len(refusal.value.details) == 2


def test_a_purge_takes_every_version_and_the_images(aws: Aws) -> None:
    make_bucket(aws)
    s3 = aws.client("s3")
    for body in (b"1", b"2"):
        s3.put_object(Bucket=aws.bucket, Key="a", Body=body)
    s3.delete_object(Bucket=aws.bucket, Key="a")
    aws.client("ecr").create_repository(repositoryName="small/trainer")
    items = inventory(aws)
    assert {item.kind for item in items} == {"bucket", "image repository"}
    assert left_over(items, purged=False) == []
    assert len(left_over(items, purged=True)) == 2
    assert empty_and_delete_bucket(aws) == 3
    assert delete_repository(aws)
    assert inventory(aws) == []
    assert empty_and_delete_bucket(aws) == 0 and not delete_repository(aws)


def test_what_others_put_into_our_vpc_is_found(aws: Aws) -> None:
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    ec2.create_tags(Resources=[vpc], Tags=[{"Key": "steadfast:environment", "Value": "small"}])
    group = ec2.create_security_group(GroupName="guard", Description="someone's", VpcId=vpc)["GroupId"]
    other = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
    found = {item.id for item in inventory(aws)}
    assert {vpc, group} <= found and other not in found


def test_log_groups_that_no_stack_owns_are_found(aws: Aws) -> None:
    """The kubectl provider's functions make theirs when they first write, outside CloudFormation."""
    logs = aws.client("logs")
    others = [
        "/aws/lambda/smaller-cluster-Handler",
        "/aws/lambda/small-cluster-cluster-Handler",  # of an environment `small-cluster`
        "/aws/lambda/small-cluster-b-cluster-Handler",
        "/aws/lambda/other",
    ]
    ours = [f"/aws/lambda/small-cluster-KubectlProviderHandler-{number}" for number in range(60)]
    ours += ["/aws/eks/small/cluster", "/steadfast/small/flow-log"]
    for name in [*ours, *others]:
        logs.create_log_group(logGroupName=name)
    found = [item for item in inventory(aws) if item.kind == "log group"]
    assert sorted(item.id for item in found) == sorted(ours)
    assert left_over(found, purged=False) == found
    assert delete_function_logs(aws) == 60
    assert {item.id for item in inventory(aws)} == {"/aws/eks/small/cluster", "/steadfast/small/flow-log"}


def test_many_things_of_a_kind_are_one_line() -> None:
    items = [Item("network interface", f"eni-{number}") for number in range(9)] + [Item("VPC", "vpc-1")]
    assert lines(items) == ["9 times network interface", "VPC vpc-1"]


def test_checks_answer_every_question_and_go_on_when_one_cannot_be_asked(aws: Aws) -> None:
    findings = check.ask(aws)
    by_question = {finding.question: finding for finding in findings}
    assert by_question["credentials"].state == "ok"
    assert by_question["CDK bootstrap"].state == "warning"
    assert by_question["image"].fix.startswith("`steadfast image push`")
    assert "will be made" in by_question["archive"].answer


def test_an_adopted_bucket_must_be_there(aws: Aws) -> None:
    adopting = Aws(small(archive={"bucket": "ours-already", "adopt": True}), aws.session)
    [finding] = check.failed(list(check.bucket_is_ours(adopting)))
    assert "ours-already is not there" in finding.answer


def test_a_bucket_of_an_earlier_life_must_be_adopted(aws: Aws) -> None:
    make_bucket(aws)
    [finding] = check.failed(list(check.bucket_is_ours(aws)))
    assert finding.fix == "archive.adopt: true uses it as it is"
    adopting = Aws(small(archive={"bucket": aws.bucket, "adopt": True}), aws.session)
    assert check.failed(list(check.bucket_is_ours(adopting))) == []


def test_a_type_that_the_zone_does_not_offer(aws: Aws) -> None:
    elsewhere = Aws(small(instance_type="p6-b200.48xlarge"), aws.session)
    [finding] = list(check.type_is_offered(elsewhere))
    assert (
        finding.state == "failed"
        and "us-east-1a does not offer p6-b200.48xlarge; us-east-1c does" in finding.answer
    )


def test_the_image_is_made_from_few_files_and_always_the_same_bytes() -> None:
    content = source_archive()
    assert content == source_archive()
    names = zipfile.ZipFile(BytesIO(content)).namelist()
    assert "trainer/launch.py" in names and "docker/Dockerfile" in names
    assert all(name.startswith(SOURCES) for name in names)
    assert not any("__pycache__" in name for name in names)
    assert len(tag()) == 16


def test_clients_are_made_once(aws: Aws) -> None:
    assert aws.client("s3") is aws.client("s3")
    assert replace(aws) == aws
    assert json.dumps(check.as_dicts(list(check.account_is_reachable(aws))))
