"""The server of a state directory: one, found again, with the same state after any end."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ops.local.aws.local_aws import LocalAws, LocalAwsError
from ops.local.aws.settings import Failure, Settings
from ops.local.aws.testing import TIME_SCALE, World
from ops.local.aws.testing import templates as t

pytestmark = pytest.mark.integration

SAVED_WITHIN_S = 30.0


@pytest.fixture
def local(tmp_path: Path) -> Iterator[World]:
    """An emulated AWS of the test's own."""
    aws = LocalAws(tmp_path / "aws")
    aws.start(Settings(time_scale=TIME_SCALE))
    yield World(aws)
    aws.stop()


def address(aws: LocalAws) -> dict[str, int]:
    found: dict[str, int] = json.loads((aws.state_dir / "aws-server.json").read_text())
    return found


def kill(aws: LocalAws) -> None:
    """The server dies without a word."""
    pid = address(aws)["pid"]
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=10)


def wait_until_saved(aws: LocalAws) -> None:
    """What is done by now is on disk: a snapshot has come that began later."""
    snapshot = aws.state_dir / "world.pickle"
    World(aws).client("ssm").put_parameter(Name="/mark", Value="x", Type="String", Overwrite=True)
    asked_at_ns = time.time_ns()
    deadline = time.monotonic() + SAVED_WITHIN_S
    while not snapshot.exists() or snapshot.stat().st_mtime_ns < asked_at_ns:
        assert time.monotonic() < deadline, "no snapshot"
        time.sleep(0.05)


def test_one_server_for_each_directory_on_loopback_only(local: World, tmp_path: Path) -> None:
    before = address(local.aws)
    LocalAws(tmp_path / "aws").start()
    assert address(local.aws) == before
    listening = [
        c for c in psutil.Process(before["pid"]).net_connections("inet") if c.status == psutil.CONN_LISTEN
    ]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}

    other = World(LocalAws(tmp_path / "other"))
    other.aws.start(Settings(time_scale=TIME_SCALE))
    try:
        local.client("s3").create_bucket(Bucket="mine")
        assert other.client("s3").list_buckets()["Buckets"] == []
        assert other.aws.endpoint_url != local.aws.endpoint_url
    finally:
        other.aws.stop()
    local.aws.stop()
    assert not psutil.pid_exists(before["pid"])
    assert not local.aws.is_running()
    local.aws.stop()


def test_state_survives_a_stop_and_a_kill_at_the_same_address(local: World) -> None:
    everything = {**t.network(), "Fs": t.file_system(), "Key": t.resource("KMS::Key", KeyPolicy={})}
    assert local.deploy("kept", everything) == "CREATE_COMPLETE"
    local.client("s3").create_bucket(Bucket="assets")
    local.client("s3").put_object(Bucket="assets", Key="big", Body=b"x" * 300_000)
    endpoint = local.aws.endpoint_url

    local.aws.stop()
    local.aws.start()
    assert local.aws.endpoint_url == endpoint
    assert local.client("s3").get_object(Bucket="assets", Key="big")["Body"].read() == b"x" * 300_000
    local.client("s3").put_object(Bucket="assets", Key="small", Body=b"y")

    wait_until_saved(local.aws)
    kill(local.aws)
    assert not local.aws.is_running()
    local.aws.start()
    assert local.client("s3").get_object(Bucket="assets", Key="small")["Body"].read() == b"y"
    found = local.change("kept", everything)
    assert "didn't contain changes" in found["StatusReason"]
    assert local.delete("kept") == "DELETE_COMPLETE", local.reasons("kept", "DELETE_FAILED")


def test_a_creation_cut_short_is_rolled_back(local: World) -> None:
    cfn = local.client("cloudformation")
    assert local.deploy("goes", {"A": t.resource("Logs::LogGroup", LogGroupName="goes")}) == "CREATE_COMPLETE"
    local.aws.fail(Failure(kind="slow", match="Slow", extra_s=TIME_SCALE * 60))
    slow = {**t.resource("Logs::LogGroup", LogGroupName="slow"), "DependsOn": "Quick"}
    local.change("cut", {"Quick": t.resource("Logs::LogGroup", LogGroupName="quick"), "Slow": slow})
    cfn.execute_change_set(StackName="cut", ChangeSetName="test")
    assert local.status("cut") == "CREATE_IN_PROGRESS"
    wait_until_saved(local.aws)
    kill(local.aws)
    local.aws.fail()
    local.aws.start()
    assert local.settle("cut") == "ROLLBACK_COMPLETE"
    assert "was stopped during the creation" in local.reasons("cut", "ROLLBACK_IN_PROGRESS")["cut"]
    names = [g["logGroupName"] for g in local.client("logs").describe_log_groups()["logGroups"]]
    assert names == ["goes"]


def test_a_port_in_use_and_a_stale_address_do_no_harm(tmp_path: Path) -> None:
    state = tmp_path / "aws"
    state.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (state / "aws-server.json").write_text(json.dumps({"pid": os.getpid(), "port": port}))
        aws = LocalAws(state)
        assert not aws.is_running()
        aws.start()
        try:
            assert address(aws)["port"] != port
            assert aws.is_running()
        finally:
            aws.stop()


def test_the_environment_reaches_this_aws_and_no_other(local: World) -> None:
    environ = local.aws.environ()
    assert environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")
    assert environ["AWS_EC2_METADATA_DISABLED"] == "true"
    assert Path(environ["HOME"]).is_relative_to(local.aws.state_dir)
    assert not Path(environ["AWS_SHARED_CREDENTIALS_FILE"]).exists()
    identity = local.client("sts").get_caller_identity()
    assert identity["Account"] == environ["CDK_DEFAULT_ACCOUNT"]


def test_a_server_that_cannot_start_names_its_log(tmp_path: Path) -> None:
    aws = LocalAws(tmp_path / "aws")
    aws.state_dir.mkdir()
    (aws.state_dir / "aws-server.json.partial").mkdir()  # where it would write its address
    with pytest.raises(LocalAwsError, match=r"did not start; see .*server\.log"):
        aws.start()
    assert not aws.is_running()
