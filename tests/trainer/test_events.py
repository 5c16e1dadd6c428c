"""The ledger, where the file system does not take what it is given."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trainer import events
from trainer.events import Event, Ledger, read_ledger

pytestmark = pytest.mark.unit


def steps(folder: Path) -> list[int]:
    return [record["step"] for record in read_ledger(folder)]


def test_a_full_disk_costs_records_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(tmp_path, "rank-0", pod="p")
    ledger.write(Event.STEP, step=1)
    real = os.write

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(events.os, "write", full)
    ledger.write(Event.STEP, step=2)
    ledger.write(Event.STEP, step=3)
    with pytest.raises(OSError, match="No space"):
        ledger.write(Event.FAULT_INJECTED, sync=True, step=4)
    assert len(caplog.records) == 1 and "No space" in caplog.text
    monkeypatch.setattr(events.os, "write", real)
    ledger.write(Event.STEP, step=5)
    assert steps(tmp_path) == [1, 5]


def test_a_record_that_was_cut_short_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path, "rank-0", pod="p")
    real = os.write
    monkeypatch.setattr(events.os, "write", lambda file, data: real(file, data[:20]))
    ledger.write(Event.STEP, step=1)
    monkeypatch.setattr(events.os, "write", real)
    ledger.write(Event.STEP, step=2)
    ledger.write(Event.STEP, step=3)
    assert steps(tmp_path) == [2, 3]


def test_readers_pass_over_what_is_torn(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, "rank-0", pod="p")
    ledger.write(Event.STEP, step=1)
    with ledger.path.open("ab") as file:
        file.write(b'{"event":"st{"event":"step","step":2}\n\xff\xfe\n[]\n')
    ledger.write(Event.STEP, step=3)
    with ledger.path.open("ab") as file:
        file.write(b'{"event":"step"')
    assert steps(tmp_path) == [1, 3]
