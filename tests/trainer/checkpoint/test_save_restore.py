"""Two ranks save, are killed or restarted, and go on as if nothing had happened.

Launches cost seconds of imports, so one launch serves as many claims as fit into it.
"""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from trainer.checkpoint.chain import Position, candidates
from trainer.checkpoint.faults import StorageFault, arm

pytestmark = pytest.mark.integration

EVERY_3 = {"persist_every": 3}
EVERY_2 = {"persist_every": 2}
READING = {"writer": "sync"}
"""For launches that save nothing: they need no writer process."""


def test_killed_run_goes_on_bit_for_bit_from_memory_and_from_storage(run: Any, make_run: Any) -> None:
    """Also KempnerForge#59 (right the first time, wrong the second), KempnerForge#114 (AdamW not bit-exact),
    Megatron-LM PR#6858, miles PR#3187 (rank 0's RNG on all), Megatron-Bridge PR#5255 (it moves after the restore),
    pytorch#120356, #146566, torchtitan#799 (values that differ between ranks)."""
    clean = make_run().run(["start"], ["train", 9], ["rng"], ["train", 12], ["rng"], config=READING)
    run.run(["start"], ["train", 7], ["drain"], ["kill", -1], config=EVERY_3, spawn_writer=True)
    second = run.run(["start"], ["train", 10], ["drain"], ["kill", -1], config=EVERY_3)
    assert second.one("open", "tier") == "memory" and second.one("open", "step") == 6
    run.forget_memory()
    third = run.run(["start"], ["rng"], ["train", 12], ["finish"], ["rng"], config=EVERY_3)
    assert third.one("open", "tier") == "storage" and third.one("open", "generation") == "step-00000009.2"
    assert third.one("trained", "state") == clean.one("trained", "state")
    rng = [[(said["rank"], said["value"]) for said in ranks.all("rng")] for ranks in (clean, third)]
    assert rng[0] == rng[1], "right after the restore, and at the end"
    assert len({str(value) for _, value in rng[0]}) == 4, "each rank has its own, and it moves"
    assert run.generations() == ["step-00000006.1", "step-00000009.2", "step-00000012.3"]


def test_any_damage_sends_all_ranks_to_the_previous_generation(run: Any) -> None:
    """e2: plain DCP loads a flipped byte without a word, and has no fallback for the rest. Megatron-LM#5281 (what
    was put together was never checked), pytorch PR#193909 (ranks read more than is stored)."""
    kinds = ["flip", "truncate", "remove", "empty", "unreadable", "torn-commit", "stale", "foreign-metadata"]
    orders: list[list[Any]] = [["start"], ["train", 4], ["drain"]]
    for n, kind in enumerate(kinds):
        orders += [["damage", kind, n % 2], ["abort"], ["start"], ["train", 4], ["drain"]]
    ranks = run.run(*orders, config={**EVERY_2, "keep": 8})
    assert ranks.codes == [0, 0], ranks.heard
    opened = [said for said in ranks.all("open") if said["rank"] == 0][1:]
    assert [said["generation"] for said in opened] == ["step-00000002.1"] * len(kinds)
    states = {(said["what"], said["step"], said["state"]) for said in ranks.all("trained") + ranks.all("open")}
    assert len(states) == 3, "start, step 2 and step 4 are each one state, however often they were reached"
    named = [event["file"] for event in run.events("fallback")]
    assert named == [said["path"] for said in ranks.all("damaged")]
    read = [event for event in run.events("restored") if event["tier"] == "storage"]
    stored = sum(p.stat().st_size for p in (run.paths.checkpoints / "step-00000002.1").glob("*.distcp"))
    assert sum(event["bytes"] for event in read) <= 1.1 * stored * len(kinds) + 40 * 1024 * len(kinds)


def test_fifty_saves_and_ten_restarts_leave_nothing_behind(run: Any) -> None:
    """e5 (every save after a restart raised), pytorch#170163, PR#131270, NVRx PR#112, Megatron-LM#2774 (memory),
    ami-data-companion#140, olmoearth#563 (shared memory, semaphores): flat counts."""
    orders: list[list[Any]] = [["start"], ["train", 5], ["drain"], ["counts"]]
    for n in range(2, 12):
        orders += [["abort"], ["start"], ["train", 5 * n], ["drain"], ["counts"]]
    ranks = run.run(*orders, config={"persist_every": 1, "keep": 2})
    assert ranks.codes == [0, 0], ranks.heard
    assert len(run.events("committed")) == 55
    for rank in (0, 1):
        counts = [said for said in ranks.all("counts") if said["rank"] == rank]
        assert counts[-1]["files"] <= max(said["files"] for said in counts[:5]) + 6
        for key in ("threads", "shm", "semaphores", "writer"):
            assert counts[-1][key] == counts[3][key], (key, counts[3][key], counts[-1][key])
        assert counts[-1]["rss_kib"] - counts[3]["rss_kib"] < 4096
    assert run.events("attempt_opened")[-1]["attempt"] == 11


def test_save_that_fails_on_one_rank_is_counted_and_ends_the_run_after_its_policy(run: Any) -> None:
    """e10: ENOSPC was never noticed. Megatron-LM#1435: one failed save killed the run."""
    arm(run.paths, StorageFault("full", "write", "ENOSPC", rank=1, from_step=4))
    ranks = run.run(
        ["start"], ["train", 100], config={**EVERY_2, "tolerate_failures": 2}, step_s=0.1
    )  # fmt: skip
    errors = ranks.all("error")
    assert [error["kind"] for error in errors] == ["SavesFailingError"] * 2, ranks.heard
    failed = run.events("save_failed")
    in_a_row = [event["in_a_row"] for event in failed]
    # as many saves as there are slots may be on their way when the third fails: they fail too, or are given up
    assert in_a_row in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5])
    assert all("rank 1" in event["error"] and "No space left" in event["error"] for event in failed[:3])
    assert run.generations() == ["step-00000002.1"]
    data = {p.parent.name for p in run.paths.checkpoints.rglob("*.distcp")}
    last = max(path.name for path in run.paths.checkpoints.iterdir())
    assert data <= {"step-00000002.1", last}, "the disk is freed at once, that of the last save by the next start"


def test_stop_is_agreed_and_saved_during_another_save(run: Any) -> None:
    """NeMo Automodel PR#3007 (ranks act at different steps), spd#677: the signal reaches one rank alone."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=1.0))
    ranks = run.run(
        ["start"], ["train", 5], ["request_stop", 1], ["train", 500], ["finish"],
        config={"persist_every": 4, "overlap": "skip"}, step_s=0.05,
    )  # fmt: skip
    step = ranks.one("stopping", "step")
    assert ranks.one("finished", "committed") is True
    assert candidates(run.paths)[0] == Position(1, step)
    decided = [event for event in run.events("save_decided") if event["decision"] == "stop"]
    assert [event["step"] for event in decided] == [step] and decided[0]["reason"] == "test"


def test_stop_without_enough_time_says_what_a_resume_will_find(run: Any) -> None:
    """pytorch#68258: the grace period is shorter than the save. All ranks say what was chosen."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=6.0, from_step=4))
    ranks = run.run(["start"], ["train", 2], ["drain"], ["train", 5], ["finish", 1.0], config=EVERY_2)
    assert ranks.one("finished", "committed") is False
    assert run.generations() == ["step-00000002.1"]
    logs = {said["rank"]: said["text"] for said in ranks.all("log") if "suffice" in said["text"]}
    chosen = "1 s did not suffice to commit step-00000005.1; a resumed run starts from step-00000002.1"
    assert logs == {0: chosen, 1: chosen}


def test_snapshots_between_persists_bound_what_a_kill_costs(run: Any) -> None:
    """A process fault loses steps since the newest snapshot in memory, not since the newest generation."""
    config = {"persist_every": 100, "snapshot_every": 2}
    orders = [order for step in (2, 4, 6, 9) for order in (["train", step], ["drain"])]
    run.run(["start"], *orders, ["kill", -1], config=config)
    again = run.run(["start"], ["train", 10], config=config)
    step = again.one("open", "step")
    # on a busy machine the snapshot of step 6 may not be known to be whole when that of step 8 is decided
    assert again.one("open", "tier") == "memory" and step in (6, 8)
    assert run.generations() == []
    record = json.loads((run.paths.attempts / "2.json").read_text())
    assert (record["from"], record["tier"]) == (f"step-{step:08d}.1", "memory")


def test_memory_of_one_rank_lost_means_storage_for_all(run: Any) -> None:
    run.run(["start"], ["train", 5], ["drain"], ["kill", -1], config=EVERY_2)
    for record in run.shm.rglob("rank-00001.slot*.json"):
        record.unlink()
    again = run.run(["start"], ["train", 4], config=EVERY_2)
    assert again.one("open", "tier") == "storage" and again.one("open", "step") == 4


def test_writer_killed_during_a_save_is_replaced(run: Any) -> None:
    """NVRx 0.7.0 and Megatron-LM#6970: a dead worker is never noticed, or waited for without end."""
    arm(run.paths, StorageFault("die", "write", "kill", rank=1, saves=1))
    ranks = run.run(["start"], ["train", 2], ["drain"], ["sleep", 1], ["train", 4], ["finish"], config=EVERY_2)
    assert ranks.codes == [0, 0], ranks.heard
    assert run.generations() == ["step-00000004.1"]
    assert any("died" in event["error"] for event in run.events("save_failed"))


def test_a_writer_that_dies_after_the_commit_has_failed_nothing(run: Any) -> None:
    """Only the deletion of what is older is lost; the next save makes up for it."""
    arm(run.paths, StorageFault("die", "pruned", "kill", rank=0, saves=1))
    config = {**EVERY_2, "tolerate_failures": 0}
    ranks = run.run(["start"], ["train", 2], ["finish"], config=config)
    assert ranks.codes == [0, 0], ranks.heard
    assert ranks.one("finished", "committed") is True
    assert run.generations() == ["step-00000002.1"] and not run.events("save_failed")
    assert any("what came after that failed" in said["text"] for said in ranks.all("log"))


def test_what_is_committed_is_not_late_though_old_generations_are_still_being_deleted(run: Any) -> None:
    """The run would end with 90, or a stop claim steps that are not lost."""
    arm(run.paths, StorageFault("slow", "pruned", "delay", rank=0, delay_s=4.0, saves=1))
    ranks = run.run(["start"], ["train", 2], ["finish", 3.0], config={"persist_every": 100})
    assert ranks.codes == [0, 0], ranks.heard
    assert ranks.one("finished", "committed") is True and not ranks.all("log")


def test_a_save_that_is_committed_after_all_has_not_failed(run: Any) -> None:
    """Rank 1's writer dies once its part is durable and acknowledged; rank 0's writer commits nevertheless."""
    arm(
        run.paths,
        StorageFault("die", "acked", "kill", rank=1, saves=1),
        StorageFault("slow", "fenced", "delay", rank=0, delay_s=1.5, saves=1),
    )
    config = {**EVERY_2, "tolerate_failures": 0}
    ranks = run.run(["start"], ["train", 2], ["sleep", 0.5], ["train", 3], ["drain"], ["train", 5], config=config)
    assert ranks.codes == [0, 0], ranks.heard
    assert any("died" in said["text"] for said in ranks.all("log"))
    assert "step-00000002.1" in run.generations() and not run.events("save_failed")


def test_a_writer_that_does_not_hash_is_replaced_when_its_attempt_ends(run: Any) -> None:
    """By the thread that replaces all of them: two at it would start two."""
    config = {"persist_every": 2, "snapshot_every": 2}
    ranks = run.run(
        ["start"], ["train", 1], ["sleep", 0.5], ["signal_writer", signal.SIGSTOP], ["train", 2], ["abort"],
        ["start"], ["train", 4], ["finish"], config=config,
    )  # fmt: skip
    assert ranks.codes == [0, 0], ranks.heard
    assert ranks.one("finished", "committed") is True
    said = [said["text"] for said in ranks.all("log") if said["rank"] == 0]
    assert sum("replacing the writer" in text for text in said) == 1
    assert not any("goes on" in text or "hangs" in text for text in said)


def test_stuck_writer_is_ended_in_bounded_time(run: Any) -> None:
    """NVRx PR#373: a write that never returns blocked all ranks. SIGSTOP stands for it."""
    arm(run.paths, StorageFault("stop", "fsync", "stop", rank=0, saves=1))
    config = {**EVERY_2, "commit_timeout_s": 5.0}
    started = time.monotonic()
    ranks = run.run(["start"], ["train", 2], ["drain"], ["sleep", 1], ["train", 4], ["finish"], config=config)
    assert ranks.codes == [0, 0] and time.monotonic() - started < 90
    assert "step-00000004.1" in run.generations()
    assert any("does not answer" in event["error"] for event in run.events("save_failed"))


def test_replaced_tensors_are_saved_not_the_old_ones(run: Any) -> None:
    """NeMo-RL#3312: checkpoints silently held the first save's weights; `set_state_dict` replaces moments."""
    ranks = run.run(
        ["start"], ["train", 2], ["drain"], ["replace_tensors"], ["train", 4], ["finish"], ["forget"], ["abort"],
        ["start"], config=EVERY_2,
    )  # fmt: skip
    assert ranks.one("open", "tier") == "storage" and ranks.one("open", "step") == 4
    assert ranks.one("open", "state") == ranks.one("finished", "state")


def test_slow_storage_skips_saves_and_steps_go_on(run: Any) -> None:
    """llnl/scr#449 (fsync of 10 to 31 s), e7 (four snapshots in memory, then a hang)."""
    arm(run.paths, StorageFault("slow", "fsync", "delay", delay_s=1.0, saves=1))
    ranks = run.run(
        ["start"], ["train", 2], ["train", 12], ["counts"], ["finish"], config={**EVERY_2, "overlap": "skip"}
    )
    assert ranks.one("finished", "committed") is True
    skipped = run.events("save_skipped")
    assert skipped and all("is still being written" in e["reason"] or "not whole" in e["reason"] for e in skipped)
    steps = [e for e in run.events("snapshot") if e["rank"] == 0]
    assert max(e["launch_s"] for e in steps) < 1.0
    for said in ranks.all("counts"):
        assert len([name for name in said["shm"] if name.endswith(".arena")]) == 2


@pytest.mark.parametrize("writer", ["sync", pytest.param("dcp", marks=pytest.mark.long)])
def test_the_other_writers_commit_and_load_the_same_state(run: Any, writer: str) -> None:
    """So that every arm of a comparison can be loaded back."""
    first = run.run(["start"], ["train", 4], ["finish"], config={**EVERY_2, "writer": writer})
    again = run.run(["start"], config=READING)
    assert again.one("open", "state") == first.one("finished", "state")
    assert again.one("open", "generation") == "step-00000004.1"
