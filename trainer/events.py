"""The ledger: append-only records from which report, metrics and lost steps are computed. Imports no torch.

Every process appends to a file of its own under `events/`, so no two writers share one. A record is one JSON
line with the common fields `event`, `wall_s` (Unix time), `mono_s` (CLOCK_MONOTONIC), `host`, `boot`, `source`,
`pod`, `pid`, and, from ranks, `attempt`, `rank` and `submission`; the rest depends on the event and is listed at
its name.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

COMPLAIN_EVERY_S = 60.0


class Event(StrEnum):
    """The one vocabulary. Fields in braces; times `*_s` are CLOCK_MONOTONIC unless they are durations."""

    # trainer.launch, one per pod
    LAUNCH_STARTED = "launch_started"  # {start: n-th start of ft_launcher in this pod}
    LAUNCH_ENDED = "launch_ended"  # {returncode, exit_code, reason, verdict}
    FAILURE_DETECTED = "failure_detected"  # {layer: "launcher", detail}  by ft_launcher
    RANK_KILLED = "rank_killed"  # {local_rank, signal}  by a signal, and left no word of its own
    GPU_MEMORY_HELD = "gpu_memory_held"  # {detail}  the next start waits for it; by whom
    WORKERS_STOPPED = "workers_stopped"  # {}
    RENDEZVOUS_COMPLETED = "rendezvous_completed"  # {}
    WORKERS_STARTED = "workers_started"  # {}
    GANG_RESTART = "gang_restart"  # {number, reason}
    HELD = "held"  # {reason}  this pod starts no ranks any more

    # a rank's life
    PROCESS_STARTED = "process_started"  # {start_s: process start, imported_s, local_rank}
    ATTEMPT_OPENED = "attempt_opened"  # rank 0: {from, tier, step, world_size, layer}
    GROUP_READY = "group_ready"  # {duration_s}
    BUILT = "built"  # {duration_s}
    RESTORED = "restored"  # {step, generation, tier, bytes, duration_s, plan_s, prepare_s, verify_s, apply_s}
    FALLBACK = "fallback"  # {generation, tier, file, reason}  a generation that was damaged
    STEP = "step"  # {step, start_s, end_s, tokens, loss, grad_norm, finite, blocked_s, data_s, saving}
    EVALUATION = "evaluation"  # {step, start_s, end_s, loss}
    SLOW_RANK = "slow_rank"  # {slow, factor, windows}
    INTERRUPTED = "interrupted"  # {layer, detail, step, start}  this rank saw the fault (step) or was told of it;
    # start: which start of the ranks it was, where no attempt was opened
    ABORTED = "aborted"  # {}  this rank has let go of its communicators
    PLANNED_STOP = "planned_stop"  # {reason, step}
    FINISHED = "finished"  # {step}  target reached, last save committed
    FINAL = "final"  # rank 0: {step, final_loss, params_sha256, num_params}

    # saves
    SAVE_DECIDED = "save_decided"  # rank 0: {step, decision: go|stop|fail, kind: persist|snapshot, reason}
    SNAPSHOT = "snapshot"  # {step, launch_s, blocked_s, bytes, stage}
    PERSIST_STARTED = "persist_started"  # {step, generation}
    RANK_WRITTEN = "rank_written"  # {step, generation, bytes, write_s, checksum_s, fsync_s}
    COMMITTED = "committed"  # rank 0: {step, generation, bytes, commit_s: launch to commit, end_s}
    SAVE_FAILED = "save_failed"  # {step, generation, error, in_a_row}
    SAVE_SKIPPED = "save_skipped"  # rank 0: {step, kind: persist|snapshot, reason}
    PRUNED = "pruned"  # {generation, reason}
    DRAIN = "drain"  # {start_s, end_s}
    PREPARED = "prepared"  # {duration_s, host_bytes, device_bytes, stage, writer}

    # faults
    FAULT_INJECTED = "fault_injected"  # {id, class, step, fault_rank}  written and synced before the act


class Ledger:
    """Appends records to one file of this process.

    A record is handed to the kernel before `write` returns, so it survives the death of the process (not of the
    machine; `sync=True` covers that too). Threads may share a ledger.
    """

    def __init__(self, directory: Path, source: str, *, pod: str, exclusive: bool = False, **common: Any) -> None:
        """`source` names file and writer, such as `rank-00003` or `launch`.

        `exclusive` makes the file `<source>.jsonl`, once for the whole run. Raises OSError, FileExistsError too.
        """
        directory.mkdir(parents=True, exist_ok=True)
        name = source if exclusive else f"{source}.{pod}.{os.getpid()}"
        self.path = directory / f"{name}.jsonl"
        self._common: dict[str, Any] = {
            "source": source,
            "pod": pod,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "boot": boot_id(),
            **common,
        }
        self._lock = threading.Lock()
        self._torn = False
        self._silent_until_s = 0.0
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | (os.O_EXCL if exclusive else 0)
        self._file = os.open(self.path, flags, 0o644)

    def bind(self, **common: Any) -> None:
        """Add fields to every later record, such as the attempt."""
        with self._lock:
            self._common = {**self._common, **common}

    def write(self, event: Event, *, sync: bool = False, **fields: Any) -> None:
        """Append one record.

        A file system that refuses costs the record and not the run: it is logged, at most once a minute. With
        `sync` the caller cannot do without the record, and OSError is raised.
        """
        now = {"event": event.value, "wall_s": time.time(), "mono_s": time.monotonic()}
        with self._lock:
            line = json.dumps({**now, **self._common, **fields}, separators=(",", ":")) + "\n"
            try:
                self._append(line.encode())
                if sync:
                    os.fsync(self._file)
            except OSError as error:
                if sync:
                    raise
                self._complain(event, error)

    def _append(self, line: bytes) -> None:
        """Raises OSError, also when only a part was taken: the next record then begins a line of its own."""
        line = b"\n" * self._torn + line
        written = os.write(self._file, line)
        self._torn = 0 < written < len(line) or (self._torn and written == 0)
        if written < len(line):
            raise OSError(errno.ENOSPC, f"{written} of {len(line)} bytes were taken", str(self.path))

    def _complain(self, event: Event, error: OSError) -> None:
        now_s = time.monotonic()
        if now_s >= self._silent_until_s:
            self._silent_until_s = now_s + COMPLAIN_EVERY_S
            log.error("the ledger lost a record (%s), and says so once a minute at most: %s", event, error)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def boot_id() -> str:
    """Identifies the clock that `mono_s` comes from: CLOCK_MONOTONIC is common to a host's processes."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def read_ledger(directory: Path) -> Iterator[Mapping[str, Any]]:
    """Every record under `directory`, unordered."""
    for path in sorted(directory.glob("*.jsonl")):
        yield from json_lines(path)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file, one a line. Raises OSError.

    What is torn is left out: a last line whose writer died in it, and a line in the middle that a full disk cut
    short, together with the record that was appended to its end.
    """
    with path.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n"):
                continue
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record
