"""Fault files and their injection."""

from pathlib import Path

import pytest

from trainer.events import read_ledger
from trainer.faults.inject import Hooks, InjectedError, Injector
from trainer.faults.schema import Fault, Phase, dump_faults, load_dumped, parse_faults

pytestmark = pytest.mark.unit


def parse(*entries: dict) -> tuple[list[Fault], list[str]]:
    return parse_faults(list(entries), source="faults.yaml", world_size=2, target_step=60, eval_every=25)


def test_good_file() -> None:
    faults, problems = parse({"id": "a", "class": "sigkill", "rank": 1, "step": 30})
    assert not problems and faults[0].rank == 1
    assert load_dumped(dump_faults(faults)) == faults


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"id": "a", "class": "meteor", "rank": 0, "step": 3}, ["faults.yaml", "entry 0 (a)", "class"]),
        ({"id": "a", "class": "nan", "rank": 2, "step": 3}, ["entry 0 (a)", "rank", "0 to 1"]),
        ({"id": "a", "class": "nan", "step": 61}, ["step", "61", "60"]),
        ({"id": "a", "class": "nan", "step": 0}, ["step"]),
        ({"id": "a", "class": "nan", "step": 3, "when": 1}, ["when"]),
        ({"class": "nan", "step": 3}, ["id"]),
        ({"id": "a", "class": "nan", "step": 2, "phase": "start_up"}, ["entry 0 (a)", "step", "1 and not 2"]),
        ({"id": "a", "class": "sigkill", "step": 9, "phase": "load"}, ["entry 0 (a)", "step", "never fires"]),
        (
            {"id": "a", "class": "nan", "step": 26, "phase": "evaluation"},
            ["entry 0 (a)", "step", "eval_every, 25"],
        ),
    ],
)
def test_bad_entries_are_named(entry: dict, words: list[str]) -> None:
    _, (problem,) = parse(entry)
    assert all(word in problem for word in words), problem


def test_phases_that_are_reached_are_not_refused() -> None:
    _, problems = parse(
        {"id": "a", "class": "sigkill", "step": 1, "phase": "load"},
        {"id": "b", "class": "exception", "step": 50, "phase": "evaluation"},
        {"id": "c", "class": "pod_kill", "step": 9, "phase": "load"},
    )
    assert not problems


def test_an_id_fires_once_so_it_is_used_once() -> None:
    entry = {"id": "a", "class": "nan", "step": 3}
    _, problems = parse(entry, entry)
    assert len(problems) == 1 and "twice" in problems[0]


def test_not_a_list() -> None:
    _, problems = parse_faults({"id": "a"}, source="f.yaml", world_size=2, target_step=9)
    assert problems and problems[0].startswith("f.yaml")


def hooks(seen: list[str]) -> Hooks:
    return Hooks(poison=lambda: seen.append("nan"), break_storage=lambda fault: seen.append(fault.id))


def test_fires_at_its_rank_step_and_phase_once_whatever_restarts(tmp_path: Path) -> None:
    faults, _ = parse({"id": "boom", "class": "exception", "rank": 1, "step": 5})
    seen: list[str] = []
    injector = Injector(faults, tmp_path, pod="p")
    for phase, step, rank in ((Phase.STEP, 4, 1), (Phase.STEP, 5, 0), (Phase.SAVE, 5, 1)):
        injector.at(phase, step, rank, hooks(seen))
    with pytest.raises(InjectedError, match="boom"):
        injector.at(Phase.STEP, 5, 1, hooks(seen))
    Injector(faults, tmp_path, pod="q").at(Phase.STEP, 5, 1, hooks(seen))  # another process, after a restart
    (record,) = read_ledger(tmp_path)
    assert (record["id"], record["class"], record["step"], record["fault_rank"]) == ("boom", "exception", 5, 1)


def test_nan_and_storage_faults_go_through_the_hooks(tmp_path: Path) -> None:
    faults, _ = parse({"id": "n", "class": "nan", "step": 1}, {"id": "full", "class": "enospc", "step": 2})
    seen: list[str] = []
    injector = Injector(faults, tmp_path, pod="p")
    for step in (1, 2, 3):
        injector.at(Phase.STEP, step, 0, hooks(seen))
    assert seen == ["nan", "full"]


def test_faults_from_outside_are_not_the_ranks_to_do(tmp_path: Path) -> None:
    faults, _ = parse({"id": "gone", "class": "node_loss", "step": 1})
    Injector(faults, tmp_path, pod="p").at(Phase.STEP, 1, 0, hooks([]))
    assert not list(tmp_path.iterdir())
