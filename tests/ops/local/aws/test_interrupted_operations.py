"""Operations on stacks in whose middle the emulator is killed: each goes on at the next start as its kind must."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from ops.local.aws.local_aws import LocalAws
from ops.local.aws.settings import Failure, Settings
from ops.local.aws.testing import TIME_SCALE, World
from ops.local.aws.testing import templates as t

pytestmark = pytest.mark.integration

SLOW_TIME_SCALE = 30.0
"""A file system takes ten seconds to go: long enough to be killed in the middle."""


def until(condition: Callable[[], Any], limit_s: float = 30.0) -> None:
    """Polls for something true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.05)


def log_group(name: str, days: int = 7, **more: Any) -> dict[str, Any]:
    return {**t.resource("Logs::LogGroup", LogGroupName=name, RetentionInDays=days), **more}


def groups(world: World) -> dict[str, int]:
    found = world.client("logs").describe_log_groups()["logGroups"]
    return {g["logGroupName"]: g["retentionInDays"] for g in found}


CHANGED = {"A": log_group("a"), "R": log_group("r")}


def _begin(world: World) -> None:
    """Three stacks, each in the middle of an operation: a deletion, an update, an update's cleanup."""
    cfn = world.client("cloudformation")
    cleaned = {**t.network(), "Fs": t.file_system(), "Kept": log_group("kept")}
    stacks = {"going": {**t.network(), "Fs": t.file_system()}, "cleaning": cleaned, "changing": CHANGED}
    with ThreadPoolExecutor() as pool:
        assert set(pool.map(world.deploy, stacks, stacks.values())) == {"CREATE_COMPLETE"}

    slower = world.aws.settings.model_copy(update={"time_scale": SLOW_TIME_SCALE})
    never = Failure(kind="slow", match="Slow", extra_s=TIME_SCALE * 60)
    world.aws.configure(slower.model_copy(update={"failures": (never,)}))
    del cleaned["Fs"]
    last = log_group("slow", DependsOn=["A", "R", "New"])
    update = {"A": log_group("a", 30), "R": log_group("r2"), "New": log_group("new"), "Slow": last}
    world.change("changing", update)
    world.change("cleaning", cleaned)
    with ThreadPoolExecutor() as pool:  # the API answers after seconds
        for stack in ("changing", "cleaning"):
            pool.submit(cfn.execute_change_set, StackName=stack, ChangeSetName="test")
        pool.submit(cfn.delete_stack, StackName="going")


def _is_under_way(world: World) -> bool:
    wanted = {
        "going": ("going", "DELETE_IN_PROGRESS"),
        "cleaning": ("cleaning", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"),
        "changing": ("Slow", "CREATE_IN_PROGRESS"),
    }
    events = {stack: {(logical, status) for logical, status, _ in world.events(stack)} for stack in wanted}
    deleting = all(("Fs", "DELETE_IN_PROGRESS") in events[stack] for stack in ("going", "cleaning"))
    return deleting and all(wanted[stack] in events[stack] for stack in wanted)


def _kill_after_a_snapshot(aws: LocalAws) -> None:
    snapshot = aws.state_dir / "world.pickle"
    World(aws).client("ssm").put_parameter(Name="/mark", Value="x", Type="String", Overwrite=True)
    asked_at_ns = time.time_ns()
    until(lambda: snapshot.stat().st_mtime_ns > asked_at_ns)
    [pid] = [c.pid for c in psutil.Process().children() if str(aws.state_dir) in c.cmdline()]
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)], timeout=10)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The emulator, killed in the middle of three operations and started again."""
    aws = LocalAws(tmp_path_factory.mktemp("killed"))
    aws.start(Settings(time_scale=TIME_SCALE))
    try:
        before = World(aws)
        _begin(before)
        until(lambda: _is_under_way(before))
        _kill_after_a_snapshot(aws)
        assert not aws.is_running()
        aws.fail()
        aws.start()
        yield World(aws)
    finally:
        aws.stop()


def test_a_deletion_goes_on(after: World) -> None:
    assert after.settle("going") == "DELETE_COMPLETE", after.reasons("going", "DELETE_FAILED")
    gone = [logical for logical, status, _ in after.events("going") if status == "DELETE_COMPLETE"]
    assert gone.index("Fs") < gone.index("SubnetA") < gone.index("Vpc") < gone.index("going")
    assert after.status("going") == "DELETE_COMPLETE"


def test_the_cleanup_after_an_update_goes_on(after: World) -> None:
    assert after.settle("cleaning") == "UPDATE_COMPLETE"
    assert after.client("fsx").describe_file_systems()["FileSystems"] == []
    assert "kept" in groups(after)
    found = after.client("cloudformation").describe_stack_resources(StackName="cleaning")["StackResources"]
    assert "Fs" not in {r["LogicalResourceId"] for r in found}
    assert after.delete("cleaning") == "DELETE_COMPLETE"


def test_an_update_is_rolled_back_to_what_was_there(after: World) -> None:
    assert after.settle("changing") == "UPDATE_ROLLBACK_COMPLETE"
    reason = after.reasons("changing", "UPDATE_ROLLBACK_IN_PROGRESS")["changing"]
    assert reason == "The emulator was stopped during the update."
    assert {n: d for n, d in groups(after).items() if n in ("a", "r", "r2", "new", "slow")} == {"a": 7, "r": 7}
    assert "didn't contain changes" in after.deploy("changing", CHANGED)
    assert after.delete("changing") == "DELETE_COMPLETE"
