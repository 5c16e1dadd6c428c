"""When a peer's process is gone, nothing in this process can help: ft_launcher must know at once.

A closed socket alone does not say that: a peer that only raised closes its own as well, as it lets its groups go.
"""

from __future__ import annotations

import time

from nvidia_resiliency_ext.inprocess.monitor_thread import RankShouldRestart

WORD_S = 1.0
"""Several of the intervals at which NVRx's monitors look (in_process.py)."""

# gloo's words when the other end of a socket is closed, and NCCL's when its proxy sees the same.
_GONE = (
    "Connection reset by peer",
    "Connection closed by peer",
    "Broken pipe",
    "ncclRemoteError",
    "remote process exited",
)


def peer_is_gone(error: BaseException) -> bool:
    """Whether an error of a collective says that another rank's process has died."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _GONE)


def await_word(limit_s: float = WORD_S) -> None:
    """Let NVRx's monitor thread say what has become of the peer.

    Returns when its process has ended, or if nothing is heard. Raises RankShouldRestart when it is alive.
    """
    deadline_s = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline_s:
            time.sleep(0.02)
    except RankShouldRestart as word:
        if "TERMINATED" not in str(word):
            raise
