"""The product's own way of saving: arena, helper thread, writer process. The others are in comparison.py."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from trainer.checkpoint.arena import Arena, ArenaDirectory, check_memory
from trainer.checkpoint.backend_types import Backend, Launch, StateNow
from trainer.checkpoint.chain import Position
from trainer.checkpoint.comparison import ComparisonBackend
from trainer.checkpoint.decisions import Decision
from trainer.checkpoint.judge import Busy
from trainer.checkpoint.layout import Layout
from trainer.checkpoint.mail import Session
from trainer.checkpoint.restore import slot_record
from trainer.checkpoint.saves import Save, Saves
from trainer.checkpoint.staging import (
    CpuStager,
    DeviceStager,
    HostStager,
    Stager,
    copy_host_state,
    leaves_room,
)
from trainer.checkpoint.worker import WriterProcess
from trainer.checkpoint.writer import Request
from trainer.config import CheckpointConfig
from trainer.events import Event, Ledger
from trainer.paths import RunPaths

WRITE_THREADS = 4
STEPS_TO_PEAK = 3


def make_backend(
    config: CheckpointConfig,
    paths: RunPaths,
    directory: ArenaDirectory,
    ledger: Ledger,
    device: torch.device,
    rank: int,
) -> Backend:
    """The way of saving that `checkpoint.writer` names."""
    if config.writer != "steadfast":
        return ComparisonBackend(config, paths, ledger, config.writer)
    return SteadfastBackend(config, paths, directory, ledger, device, rank)


class SteadfastBackend(Backend):
    """A snapshot into the arena, written by another process."""

    def __init__(
        self,
        config: CheckpointConfig,
        paths: RunPaths,
        directory: ArenaDirectory,
        ledger: Ledger,
        device: torch.device,
        rank: int,
    ) -> None:
        self._config, self._paths, self._directory = config, paths, directory
        self._ledger, self._device = ledger, device
        self._started_s = time.monotonic()
        directory.attach(rank)
        self._writer = WriterProcess(directory.path, rank)
        self._saves = Saves(self._writer, paths, ledger)
        self._arena: Arena | None = None
        self._stager: Stager | None = None
        self._layout: Layout
        self._digest = ""
        self._errors: dict[Position, str] = {}
        self._next_slot = 0
        self._last: Launch | None = None
        self._steps = 0

    def prepare(self, layout: Layout, ranks_here: int) -> Arena:
        """See `Backend`."""
        if self._digest != layout.digest:
            self._stager = None
        self._layout, self._digest = layout, layout.digest
        count = self._config.host_slots
        arena = self._arena
        if arena is None and self._writer.stuck_pids:
            self._directory.forget(layout.rank)  # fenced: what the stuck writer maps is not this arena any more
        if arena is None or (arena.rank, arena.slot_bytes) != (layout.rank, layout.slot_bytes):
            check_memory(
                layout.slot_bytes * count, ranks_here, self._config.max_host_fraction, self._directory.path, count
            )
            if arena is not None:
                arena.close()
            arena = self._arena = Arena(self._directory, layout.rank, layout.slot_bytes, count, self._device)
            self._stager = None
        held = self._directory.slots(layout.rank)
        for index in range(count):
            if index not in held or held[index].layout != layout.digest:
                arena.invalidate(index)
                arena.stamp(layout, index)
        if self._stager is None:
            self._stager = self._make_stager()
        whole = {index: (slot.attempt, slot.step) for index, slot in held.items() if index < count}
        arena.register(first=max(whole, key=lambda index: whole[index], default=0))
        return arena

    def _make_stager(self) -> Stager:
        assert self._arena is not None
        if self._device.type != "cuda":
            return CpuStager(self._layout)
        if self._config.stage == "device":
            return DeviceStager(self._layout, self._device, self._arena.registered)
        return HostStager(self._layout, self._device, self._arena.registered)

    @property
    def landing(self) -> DeviceStager | None:
        """Device memory that a restore may use."""
        return self._stager if isinstance(self._stager, DeviceStager) else None

    def settle(self, decision: Decision, now: Mapping[str, torch.Tensor]) -> None:
        """`auto` is settled: all ranks take device-side snapshots from here on."""
        assert self._arena is not None and self._stager is not None
        if decision.stage == "device" and not isinstance(self._stager, DeviceStager):
            self._stager.guard()  # its copy may still read the state, and nobody will ask it again
            self._stager = DeviceStager(self._layout, self._device, self._arena.registered)
            if self._arena.registered.is_set():
                self._report_prepared()
        if isinstance(self._stager, DeviceStager):
            self._stager.rehearse(now)

    def begin(self, session: Session) -> None:
        """See `Backend`."""
        self._saves.begin(session)
        self._last = None
        assert self._stager is not None and self._arena is not None
        self._arena.when_registered(self._report_prepared)
        self._steps = 0

    def _report_prepared(self) -> None:
        assert self._stager is not None and self._arena is not None
        self._ledger.write(
            Event.PREPARED,
            duration_s=self._arena.register_s,
            host_bytes=self._arena.total_bytes,
            device_bytes=self._stager.device_bytes,
            stage=self._stager.name,
            writer="steadfast",
        )

    def tell(self, decision: Decision) -> None:
        """See `Backend`."""
        self._saves.tell(decision)

    def launch(self, launch: Launch, now: StateNow) -> None:
        """See `Backend`."""
        assert self._arena is not None and self._stager is not None
        self._last = launch
        started = time.monotonic()
        slot = self._take_slot(launch)
        if slot is None:
            self._saves.fail(launch, f"no slot of the arena was free within {launch.wait_s:.0f} s")
            return
        self._arena.wait_allocated(slot)
        self._arena.invalidate(slot)
        memory = self._arena.slot(slot)
        copy_host_state(self._layout, memory, now.host)
        copy = self._stager.launch(memory, now.locals)
        launched_s = time.monotonic()
        self._saves.add(
            Save(
                position=launch.position,
                ticket=launch.ticket,
                slot=slot,
                copy=copy,
                request=self._request(launch, slot),
                stage=self._stager.name,
                launched_s=started,
                launch_s=launched_s - started,
                deadline_s=launched_s + 2 * self._config.commit_timeout_s,
            )
        )

    def _take_slot(self, launch: Launch) -> int | None:
        """One that no writer reads; the newest whole snapshot only if there is no other."""
        assert self._arena is not None
        count = self._arena.count

        def free() -> list[int]:
            leased = self._saves.leased()
            return [index for index in range(count) if index not in leased]

        def ready() -> bool:
            return bool(free()) and (count == 1 or self._saves.whole())

        if not ready():  # else two snapshots under way would leave none that is whole
            self._saves.wait(ready, launch.wait_s)
        held = self._directory.slots(self._layout.rank)
        order = sorted(free(), key=lambda i: (held[i].attempt, held[i].step) if i in held else (-1, -1))
        return order[0] if order else None

    def _request(self, launch: Launch, slot: int) -> Request:
        assert self._arena is not None
        return Request(
            run_root=self._paths.root,
            generation=launch.position.name,
            origin=launch.origin,
            arena=self._arena.path,
            slot_at=self._arena.slot_at(slot),
            slot=slot_record(self._arena, self._layout, launch.position, []),
            slot_record=self._arena.record(slot),
            outcome=self._directory.outcome(self._layout.rank, launch.position.name),
            persist=launch.persist,
            metadata=self._layout.metadata_file if self._layout.rank == 0 else b"",
            commit_timeout_s=self._config.commit_timeout_s,
            keep=self._config.keep,
            keep_spaced=self._config.keep_spaced,
            write_threads=WRITE_THREADS,
        )

    def guard(self) -> None:
        """See `Backend`."""
        if self._stager is not None:
            self._stager.guard()

    def poll(self) -> None:
        """The helper thread polls; here only `auto` is settled, once the peak of memory is known."""
        self._steps += 1
        undecided = self._config.stage == "auto" and isinstance(self._stager, HostStager)
        if self._steps == STEPS_TO_PEAK and undecided:
            self._saves.mail.vote(leaves_room(self._layout.slot_bytes, self._device))

    def under_way(self) -> bool:
        """See `Asked`."""
        return bool(self._saves.active)

    def persisting(self) -> bool:
        """See `Asked`."""
        return any(save.persists for save in self._saves.active)

    def drain(self, timeout_s: float, *, of: Position | None = None) -> bool:
        """See `Backend`."""

        def over() -> bool:
            return not self._saves.active or (of is not None and self._saves.committed == of)

        return self._saves.wait(over, timeout_s)

    def left(self) -> list[Position]:
        """See `Backend`."""
        return self._saves.left()

    def abandon(self, timeout_s: float) -> bool:
        """See `Backend`."""
        if self._stager is not None and not self._saves.wait(self._stager.idle, timeout_s):
            return False
        return self._saves.end(timeout_s)

    def close(self) -> None:
        """See `Backend`."""
        self._saves.close()
        self._writer.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def request_stop(self, reason: str) -> None:
        """See `Backend`."""
        self._saves.stop_reason = reason

    def stop_seen(self) -> str | None:
        """See `Backend`."""
        return self._saves.mail.stop_seen or self._saves.stop_reason

    def busy(self, *, persist: bool, pending: int | None) -> Busy | None:
        """See `Asked`. Under `wait` a save to storage waits for its slot at its launch."""
        if persist and self._config.overlap == "wait":
            return None
        writing = [save for save in self._saves.active if save.persists]
        if persist and writing:
            return Busy(f"{writing[0].position.name} is still being written")
        if pending is not None:
            return Busy(f"the snapshot of step {pending} is still to be taken", passing=True)
        mail = self._saves.mail
        if (newest := mail.unconfirmed(self._config.commit_timeout_s)) is not None:
            return Busy(f"the snapshot of step {newest.step} is not whole on all ranks yet", passing=True)
        if len(held := mail.held()) >= self._config.host_slots:
            return Busy(f"no slot is free on all ranks: {held[0].name} is still being written")
        return None

    def stage(self) -> str:
        """See `Backend`."""
        if self._saves.mail.device_agreed:
            return "device"
        return self._stager.name if self._stager else ""

    def failures_in_a_row(self) -> int:
        """See `Backend`."""
        return self._saves.failures_in_a_row

    def fate(self, position: Position) -> str:
        """See `Backend`."""
        if self._saves.committed == position:
            return "committed"
        return self._saves.errors.get(position, "not committed")

    def will_persist(self, step: int) -> bool:
        """See `Backend`."""
        return self._last is not None and self._last.position.step == step and self._last.persist

    def persist_s(self) -> float | None:
        """See `Backend`."""
        return self._saves.last_commit_s

    def overheads(self) -> dict[str, Any]:
        """See `Backend`."""
        return {"writer_pid": self._writer.pid, "writer_replaced": self._writer.replaced, "cpus": os.cpu_count()}
