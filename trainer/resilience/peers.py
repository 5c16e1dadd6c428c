"""When a peer's process is gone, nothing in this process can help: ft_launcher must know at once."""

from __future__ import annotations

# gloo's words when the other end of a socket is closed by its kernel, and NCCL's when its proxy sees the same.
# A peer that only raised keeps its sockets open, so it does not look like this.
_GONE = ("Connection reset by peer", "Connection closed by peer", "ncclRemoteError", "remote process exited")


def peer_is_gone(error: BaseException) -> bool:
    """Whether an error of a collective says that another rank's process has died."""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _GONE)
