"""What others have reported of their checkpoints, on two ranks of ours. Each docstring names the reports."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from trainer.checkpoint.chain import Position, candidates
from trainer.checkpoint.faults import StorageFault, arm
from trainer.checkpoint.records import COMMIT, Commit, load

pytestmark = pytest.mark.integration

READING = {"writer": "sync"}
"""For launches that only load: they need no writer process."""
WIDTH = 72


@pytest.fixture(name="saved_slowly", scope="module")
def _saved_slowly(module_run: Any) -> Any:
    """Three steps without a save, three with one that the storage takes its time for, and a start from it."""
    arm(module_run.paths, StorageFault("slow", "fsync", "delay", delay_s=0.5, saves=1))
    orders: list[list[Any]] = [["start"], ["sequence"], ["train", 1], ["train", 3], ["sequence"], ["train", 4]]
    orders += [["train", 6], ["sequence"], ["drain"], ["forget"], ["abort"], ["start"], ["sequence"]]
    ranks = module_run.run(*orders, config={"persist_every": 4}, frozen=True)
    assert ranks.codes == [0, 0], ranks.heard
    return ranks


def test_a_save_is_the_state_of_its_own_step(saved_slowly: Any, module_run: Any) -> None:
    """Megatron-Bridge#3267, PR#5738: the record said a later step. Megatron-LM PR#2288: the buffer was used again
    while the writer still read it. EasyR1#275: a parameter that is not trained."""
    states = {said["step"]: said["state"] for said in saved_slowly.all("trained")}
    assert saved_slowly.one("open", "step") == 4 and saved_slowly.one("open", "state") == states[4] != states[6]
    record = load(Commit, module_run.paths.checkpoints / "step-00000004.1" / COMMIT)
    assert (record.step, record.attempt) == (4, 1)


def test_a_save_needs_no_collective_and_no_plan(saved_slowly: Any) -> None:
    """tnt PR#1064 (50 of 67 min in gather and scatter), pytorch PR#147343, PR#147758, NVRx PR#359 (a plan a save),
    NousResearch PR#31, KempnerForge PR#105, NeMo-RL#3893 (checkpoint traffic on the default group)."""
    for rank in (0, 1):
        said = [said for said in saved_slowly.all("sequence") if said["rank"] == rank]
        before, idle, saving = said[:3]
        assert saving["control"] == idle["control"] == before["control"]
        assert saving["default"] - idle["default"] == idle["default"] - before["default"] > 0
        assert [entry["plans"] for entry in said] == [1, 1, 1, 2], "one at each start"


def test_killed_in_the_middle_of_a_save(run: Any) -> None:
    """e6, e11 (orphans publish later), KempnerForge#102, #103 (a pointer to what is not durable), torchtitan#930
    (a load right after), SkyRL#2145, verl#7363 (the last good one goes, or `latest` moves, before the new one)."""
    arm(run.paths, StorageFault("slow", "written", "delay", delay_s=60.0, from_step=4))
    ranks = run.launch(
        ["start"], ["train", 2], ["drain"], ["counts"], ["train", 4], ["say", "saving"], ["sleep", 300],
        config={"persist_every": 2, "keep": 2},
    )  # fmt: skip
    ranks.until("saving", count=2)
    while len(run.events("persist_started")) < 4:
        time.sleep(0.02)
    for pid in ranks.pids:
        os.kill(pid, signal.SIGKILL)
    ranks.wait()
    writers = [said["writer"] for said in ranks.all("counts")]
    end = time.monotonic() + 5
    while any(_runs(pid) for pid in writers) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(_runs(pid) for pid in writers)
    assert run.paths.progress.read_text() == "2" and run.generations() == ["step-00000002.1"]
    run.forget_memory()
    again = run.run(["start"], ["train", 3], config=READING)
    assert again.one("open", "generation") == "step-00000002.1"
    assert again.one("trained", "step") == 3, "Megatron-LM#2774: not from the beginning"
    assert run.generations() == ["step-00000002.1"] and not (run.paths.checkpoints / "step-00000004.1").exists()


def _runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_an_abandoned_save_never_becomes_one_of_the_next_attempt(run: Any) -> None:
    """Megatron-Bridge#5117, #5842: after a restart in the process a save commits results of the last."""
    arm(run.paths, StorageFault("slow", "written", "delay", delay_s=1.5, rank=1, saves=1))
    ranks = run.run(
        ["start"], ["train", 2], ["abort"], ["forget_here"], ["start"], ["train", 4], ["drain"], ["forget"],
        ["abort"], ["start"], config={"persist_every": 2},
    )  # fmt: skip
    assert ranks.codes == [0, 0], ranks.heard
    assert run.generations() == ["step-00000002.2", "step-00000004.2"]
    assert ranks.one("open", "step") == 4 and ranks.one("open", "state") == ranks.one("trained", "state")


def test_saves_in_a_row_wait_for_a_slot_and_all_commit(run: Any) -> None:
    """e7 (four snapshots, then a hang). radixark PR#61, Megatron-LM#1707: memory of saves has a bound."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=0.1))
    ranks = run.run(["start"], ["train", 6], ["finish"], config={"persist_every": 1, "keep": 2, "overlap": "wait"})
    assert ranks.codes == [0, 0], ranks.heard
    assert [event["step"] for event in run.events("committed")] == [1, 2, 3, 4, 5, 6]
    assert not run.events("save_skipped") and not run.events("save_failed")
    held = sum(path.stat().st_size for path in run.shm.rglob("*.arena"))
    assert held == sum(event["host_bytes"] for event in run.events("prepared"))
    assert all(event["bytes"] <= held / 4 for event in run.events("snapshot")), "two slots on each of two ranks"


@pytest.mark.parametrize(("name", "within_s"), [("SIGSTOP", (3.5, 20.0)), ("SIGKILL", (0.0, 3.5))])
def test_a_rank_that_does_not_come_is_named(run: Any, name: str, within_s: tuple[float, float]) -> None:
    """e14. marin#8534: one rank's stalled read kept 704 GPUs waiting for 4.5 hours, and nobody knew for which."""
    ranks = run.launch(["start"], config=READING, lost_in_open=1, signal=name, control_timeout_s=4.0)
    ranks.until("error")
    os.kill(ranks.pids[1], signal.SIGKILL)
    ranks.wait()
    assert "did not come: ranks [1]" in ranks.all("error")[0]["text"]
    assert within_s[0] <= ranks.all("opened")[0]["took_s"] <= within_s[1]


def test_planned_stop_with_loader_workers_during_evaluation(run: Any, make_tokens: Any) -> None:
    """e15 (the loader dies before the save), spd#677, #741 (0 of 6 saves: the signal came during an evaluation),
    NeMo Automodel PR#3007 (one rank alone hears it), pytorch#26072 (loader workers outlive their parent)."""
    ranks = run.launch(
        ["start"], ["train", 3], ["evaluate", 20], ["train", 500], ["finish"],
        data=str(make_tokens(WIDTH)), width=WIDTH, workers=1,
    )  # fmt: skip
    ranks.until("evaluating", count=2)
    os.killpg(ranks.pids[1], signal.SIGTERM)
    ranks.wait()
    step = ranks.one("stopping", "step")
    assert step <= 6, "two steps after rank 0 heard of it, which may take a step"
    assert ranks.one("finished", "committed") is True and candidates(run.paths)[0] == Position(1, step)
    assert [event["reason"] for event in run.events("save_decided")] == ["SIGTERM"]


def test_sizes_that_nothing_divides(run: Any) -> None:
    """torchtitan#1136: the loss differed where a dimension is no multiple of the world size; saved at two ranks,
    loaded at one, saved there, loaded at two."""
    options = {"width": 7, "frozen": True}
    two = run.run(["start"], ["train", 2], ["finish"], **options)
    one = run.run(["start"], ["train", 3], ["finish"], ranks=1, **options)
    again = run.run(["start"], config=READING, **options)
    assert one.all("open")[0]["state"] == two.one("finished", "state")
    assert again.one("open", "state") == one.one("finished", "state") and again.one("open", "step") == 3
