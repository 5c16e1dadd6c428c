"""Two ranks save, die, start again and go on as if nothing had happened."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.integration

SAVE_EVERY_3 = {"persist_every": 3}


def test_killed_run_goes_on_bit_for_bit_from_memory_and_from_storage(run: Any, make_run: Any) -> None:
    """Also KempnerForge#59: right the first time, wrong the second."""
    clean = make_run().run(["start"], ["train", 12], ["rng"])
    run.run(["start"], ["train", 7], ["drain"], ["kill", -1], config=SAVE_EVERY_3)
    second = run.run(["start"], ["train", 10], ["drain"], ["kill", -1], config=SAVE_EVERY_3)
    assert second.one("open", "tier") == "memory" and second.one("open", "step") == 6
    run.forget_memory()
    third = run.run(["start"], ["train", 12], ["finish"], ["rng"], config=SAVE_EVERY_3)
    assert third.one("open", "tier") == "storage" and third.one("open", "generation") == "step-00000009.2"
    assert third.one("trained", "state") == clean.one("trained", "state")
    rng = [{said["rank"]: said["value"] for said in ranks.all("rng")} for ranks in (clean, third)]
    assert rng[0] == rng[1] and rng[0][0] != rng[0][1]
    assert run.generations() == ["step-00000006.1", "step-00000009.2", "step-00000012.3"]
