"""Every fault of storage, during a save and after its commit: the newest whole generation loads on all ranks."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.integration

SLOW_S = 5.0
PREVIOUS, NEWEST = 2, 4

# what strikes rank 1 (rank 0 where only that one acts) in the save of step 4, and what is newest and whole then
DURING: dict[str, tuple[dict[str, Any], int]] = {
    "ENOSPC": ({"point": "write", "action": "ENOSPC", "rank": 1}, PREVIOUS),
    "flipped byte": ({"point": "written", "action": "flip", "rank": 1}, PREVIOUS),
    "truncated": ({"point": "written", "action": "truncate", "rank": 1}, PREVIOUS),
    "missing": ({"point": "written", "action": "remove", "rank": 1}, PREVIOUS),
    "slow fsync": ({"point": "fsync", "action": "delay", "delay_s": SLOW_S, "rank": 1}, NEWEST),
    "stale marker": ({"point": "made", "action": "stale", "rank": 0}, NEWEST),
}
AFTER: dict[str, tuple[dict[str, Any], int]] = {
    "ENOSPC": ({"point": "committed", "action": "ENOSPC", "rank": 0}, NEWEST),
    "flipped byte": ({"point": "committed", "action": "flip", "rank": 0}, PREVIOUS),
    "truncated": ({"point": "committed", "action": "truncate", "rank": 0}, PREVIOUS),
    "missing": ({"point": "committed", "action": "remove", "rank": 0}, PREVIOUS),
    "slow fsync": ({"point": "committed", "action": "delay", "delay_s": SLOW_S, "rank": 0}, NEWEST),
    "stale marker": ({"point": "committed", "action": "stale", "rank": 0}, PREVIOUS),
}
CELLS = {(fault, "during a save"): cell for fault, cell in DURING.items()} | {
    (fault, "after commit"): cell for fault, cell in AFTER.items()
}


@pytest.fixture(scope="module")
def said(module_run: Any) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """One launch for all: each cell goes on where the last one ended, saves well, then badly, and restarts."""
    orders: list[list[Any]] = [["start"]]
    for (fault, when), (fields, _) in CELLS.items():
        orders += [["advance", PREVIOUS], ["drain"], ["advance", 1], ["arm", {"id": f"{fault} {when}", **fields}]]
        orders += [
            ["advance", 1],
            ["drain"],
            ["arm"],
            ["forget"],
            ["abort"],
            ["start"],
            ["say", f"{fault} {when}"],
        ]
    ranks = module_run.run(*orders, config={"persist_every": 2, "tolerate_failures": 99})
    assert ranks.codes == [0, 0], ranks.heard
    return _by_cell(ranks.heard)


def _by_cell(heard: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What both ranks said of their steps and starts before they named the cell."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {cell: [] for cell in CELLS}
    names = {f"{fault} {when}": (fault, when) for fault, when in CELLS}
    for rank in (0, 1):
        current: list[dict[str, Any]] = []
        for entry in (said for said in heard if said["rank"] == rank):
            if entry["what"] in ("trained", "open"):
                current.append(entry)
            if entry["what"] in names:
                cells[names[entry["what"]]] += current[-4:]
    return cells


@pytest.mark.parametrize("cell", CELLS, ids=", ".join)
def test_the_newest_whole_generation_loads_on_all_ranks(said: dict[Any, Any], cell: tuple[str, str]) -> None:
    for well, _, badly, opened in (said[cell][:4], said[cell][4:]):
        expected = {PREVIOUS: well, NEWEST: badly}[CELLS[cell][1]]
        assert (opened["what"], opened["tier"]) == ("open", "storage")
        assert (opened["step"], opened["state"]) == (expected["step"], expected["state"])


def test_what_was_wrong_is_named(said: dict[Any, Any], module_run: Any) -> None:
    """Damage by the file, in the order in which it was met; a failed save by the rank and the reason."""
    named = [event["file"].rpartition("/")[2] for event in module_run.events("fallback")]
    assert named == ["__1_0.distcp", "__0_0.distcp", "__0_0.distcp", "__0_0.distcp", "commit.json"]
    failed = [event["error"] for event in module_run.events("save_failed")]
    for error, words in zip(
        failed, ("No space left", "acknowledged were", "No such file", "No space left"), strict=True
    ):
        assert words in error
