"""What a planned stop met on slow machines: a writer that had hardly started, a store that was held."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from trainer.checkpoint.decisions import Board
from trainer.checkpoint.mail import Mail, Session
from trainer.checkpoint.worker import WriterProcess

pytestmark = pytest.mark.integration


@pytest.fixture(name="store")
def _store() -> Iterator[Store]:
    yield PrefixStore("test", TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))


def test_a_stop_does_not_end_a_writer_that_is_still_starting(tmp_path: Path) -> None:
    """ft_launcher signals the rank's whole process group, at any moment of the writer's imports."""
    writer = WriterProcess(tmp_path, 0)
    try:
        assert not writer.ready
        os.kill(writer.pid, signal.SIGTERM)
        assert writer.wait_ready(60.0)
        os.kill(writer.pid, signal.SIGTERM)
        time.sleep(0.5)
        assert writer.alive
    finally:
        writer.close()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_writer_is_replaced_without_waiting_and_is_deaf_as_well(tmp_path: Path) -> None:
    """The queue that is left behind would wait for the new worker, end it, and have a third started."""
    writer = WriterProcess(tmp_path, 0)
    try:
        assert writer.wait_ready(60.0)
        writer.replace()
        assert not writer.ready  # whoever waits for it comes back when it has imported
        pid = writer.pid
        os.kill(pid, signal.SIGTERM)
        gc.collect()
        assert writer.wait_ready(60.0)
        assert (writer.pid, writer.alive) == (pid, True)
    finally:
        writer.close()


def test_a_failure_is_told_while_training_waits_in_the_store(store: Store) -> None:
    """Calls over one connection wait for each other: rank 0 would never learn what everyone waits for."""
    board = Board(store, 0, 1, 5.0)
    mail = Mail(Session(1, 2, 1, None, store, board))  # type: ignore[arg-type]
    waiting = threading.Thread(target=_wait, args=(store,), daemon=True)
    waiting.start()
    time.sleep(0.2)
    mail.say_failed("1.7", "its writer died")
    began_s = time.monotonic()
    mail.exchange([])
    assert time.monotonic() - began_s < 2.0
    lead = Mail(Session(0, 2, 1, None, store, board))  # type: ignore[arg-type]
    assert lead.exchange(["1.7"]) == {"1.7": "rank 1: its writer died"}
    waiting.join()


def _wait(store: Store) -> None:
    with pytest.raises(RuntimeError):
        store.wait(["never"], timedelta(seconds=3))


RANKS = """
import multiprocessing, os, signal, sys, time
from trainer.process import run_to_the_end

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.closerange(1, 3)  # or the test would wait for it
    time.sleep(300)

def main(end):
    child = multiprocessing.get_context("fork").Process(target=deaf, daemon=True)
    child.start()
    print(child.pid, flush=True)
    time.sleep(0.2)
    exec(end)

for end in sys.argv[1:]:
    if not os.fork():
        os.dup2(1, 2)
        run_to_the_end(lambda: main(end) or 0)
    print("code", os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
ENDS = [
    ("raise ValueError('no such step')", 1, "ValueError: no such step"),
    ("raise SystemExit(93)", 93, ""),
    ("raise SystemExit('no such file')", 1, "no such file"),
    ("pass", 0, ""),
]


def test_ranks_end_though_their_writers_do_not() -> None:
    """multiprocessing joins its children without a bound, and writers ignore SIGTERM."""
    command = [sys.executable, "-c", RANKS, *(end for end, _, _ in ENDS)]
    root = Path(__file__).parents[3]
    said = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=root).stdout
    parts = said.split("code ")
    assert len(parts) == len(ENDS) + 1, said
    for number, (_, code, says) in enumerate(ENDS):
        deaf = int(parts[number].splitlines()[1 if number else 0])
        with contextlib.suppress(ProcessLookupError):
            os.kill(deaf, signal.SIGKILL)
        assert says in parts[number] and parts[number + 1].split()[0] == str(code), said


ALONE = """
import psutil, sys, threading
from pathlib import Path
from trainer import early
from trainer.checkpoint.worker import WriterProcess, is_writer
from trainer.process import end_process

alone = WriterProcess(Path(sys.argv[1]), 0)
assert alone.wait_ready(60.0)
threading.Thread(target=threading.Event().wait, daemon=True).start()
not_alone = WriterProcess(Path(sys.argv[1]), 1)
assert not_alone.wait_ready(60.0)
for writer in (alone, not_alone):
    process = psutil.Process(writer.pid)
    print(process.cmdline() == psutil.Process().cmdline(), process.name(), process.nice(), flush=True)
end_process(0)
"""


def test_a_rank_with_one_thread_forks_its_writer_and_spawns_it_later(tmp_path: Path) -> None:
    """What is spawned imports torch again, beside the first steps after each restart."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ALONE, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["True steadfast-save 10", "False steadfast-save 10"]
