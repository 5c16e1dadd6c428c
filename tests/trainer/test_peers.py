"""What a closed socket means: NVRx's word decides."""

from __future__ import annotations

import threading
import time

import pytest
from nvidia_resiliency_ext.inprocess.monitor_thread import RankShouldRestart, async_abort_main_thread

from trainer.resilience.peers import await_word, peer_is_gone

pytestmark = pytest.mark.unit


def tell(word: str) -> None:
    threading.Timer(0.1, async_abort_main_thread, [word]).start()


def test_a_peer_that_only_raised_is_waited_for() -> None:
    tell("Interruption.EXCEPTION affecting ranks {1}")
    with pytest.raises(RankShouldRestart):
        await_word(5.0)


def test_a_peer_whose_process_has_ended_is_not() -> None:
    tell("Interruption.TERMINATED affecting ranks {1}")
    began_s = time.monotonic()
    await_word(5.0)
    assert time.monotonic() - began_s < 2.0


def test_silence_is_bounded() -> None:
    began_s = time.monotonic()
    await_word(0.2)
    assert 0.2 <= time.monotonic() - began_s < 2.0


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        ("[pair.cc:461] writev [127.0.0.1]:41626: Broken pipe", True),
        ("gloo: Connection closed by peer [10.0.0.2]:4711", True),
        ("Read error: Connection reset by peer", True),
        ("Timed out waiting 5000ms for send operation to complete", False),
    ],
)
def test_only_closed_sockets_look_like_it(words: str, gone: bool) -> None:
    assert peer_is_gone(RuntimeError(words)) is gone
    assert not peer_is_gone(ValueError(words))
