"""Who counts as using a local world, across processes that end well and badly."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ops.local.holders import Holders, Part

pytestmark = pytest.mark.unit

HOLD = """
import sys, time
from pathlib import Path
from ops.local.holders import Holders
holders = Holders(Path(sys.argv[1]))
with holders.changing():
    holders.enter()
print("in", flush=True)
time.sleep(60)
"""


def others(holders: Holders) -> list[int]:
    with holders.changing():
        return holders.others()


def test_a_command_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    mine = Holders(tmp_path)
    with mine.changing():
        mine.enter()
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"in\n"
        assert others(mine) == [child.pid]
        assert sorted(others(Holders(tmp_path))) == sorted([os.getpid(), child.pid])
        child.kill()
        child.wait()
    assert others(mine) == []
    with mine.changing():
        mine.leave()
    assert others(Holders(tmp_path)) == []


def test_one_changes_at_a_time_and_the_next_is_told(tmp_path: Path) -> None:
    told = threading.Event()
    entered = threading.Event()

    def second() -> None:
        with Holders(tmp_path).changing(told.set):
            entered.set()

    with Holders(tmp_path).changing():
        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(10) and not entered.is_set()
    thread.join(10)
    assert entered.is_set()


def test_marks_are_seen_by_all(tmp_path: Path) -> None:
    one, other = Holders(tmp_path), Holders(tmp_path)
    with one.changing():
        one.mark(Part.AWS)
    assert other.is_passing(Part.AWS) and not other.is_passing(Part.KUBERNETES)
    with other.changing():
        other.keep(*Part)
    assert not one.is_passing(Part.AWS)


def test_what_is_kept_stays_so_until_it_is_gone(tmp_path: Path) -> None:
    holders = Holders(tmp_path)
    with holders.changing():
        holders.keep(Part.AWS)
        assert holders.is_kept(Part.AWS) and not holders.is_kept(Part.KUBERNETES)
        holders.mark(Part.AWS)
        assert holders.is_passing(Part.AWS) and not holders.is_kept(Part.AWS)
        holders.keep(Part.AWS)
        holders.forget()
        assert not holders.is_kept(Part.AWS) and not holders.is_passing(Part.AWS)
