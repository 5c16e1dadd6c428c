"""Where to go on: all ranks agree on a state, each verifies its part, and only then is the model touched.

Candidates are what lies on the chain, newest first: what every rank still holds in its arena (the same pods, the
same world size), and what is committed on storage. Damage on any rank sends all to the next one together.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import partial

import torch

from trainer.checkpoint.arena import Arena
from trainer.checkpoint.chain import Position, candidates, read_chain
from trainer.checkpoint.layout import Layout, gather
from trainer.checkpoint.reading import Filling, MismatchError, fill_from_storage, hash_slot, verify_slot
from trainer.checkpoint.records import DamageError, Slot, Tier, seal
from trainer.checkpoint.staging import DeviceStager, locals_of, matching_pieces
from trainer.checkpoint.state import Control, Saveable
from trainer.checkpoint.storage import PosixStorage, publish
from trainer.events import Event, Ledger, boot_id
from trainer.paths import RunPaths

log = logging.getLogger(__name__)


class NothingLoadableError(Exception):
    """Several generations are committed and none can be read: not a reason to start over without being told."""


@dataclass(frozen=True)
class Candidate:
    """A state that all ranks may try."""

    position: Position
    tier: Tier


@dataclass
class Loaded:
    """What was taken, and what it took."""

    candidate: Candidate | None
    slot: int | None = None
    read_bytes: int = 0
    verify_s: float = 0.0
    apply_s: float = 0.0
    failed: list[str] = field(default_factory=list)


class Restorer:
    """Brings a state back into training. `arena` is None for the comparison writers."""

    def __init__(
        self,
        control: Control,
        paths: RunPaths,
        layout: Layout,
        arena: Arena | None,
        ledger: Ledger,
        landing: DeviceStager | None = None,
    ) -> None:
        """`landing`: device memory that verified bytes may go to before all ranks have agreed."""
        self._control, self._paths, self._layout = control, paths, layout
        self._arena, self._ledger, self._landing = arena, ledger, landing

    def restore(self, state: Saveable) -> Loaded:
        """Collective. Raises MismatchError, NothingLoadableError."""
        held = self._held()
        every_rank = gather(sorted(held), self._control.group)
        listed = self._choose(every_rank) if self._control.rank == 0 else []
        listed = gather(listed, self._control.group)[0]
        failed: list[str] = []
        for candidate in listed:
            loaded = self._try(candidate, held, state)
            if loaded is not None:
                loaded.failed = failed
                return loaded
            failed.append(candidate.position.name)
        if len([c for c in listed if c.tier == "storage"]) > 1:
            raise NothingLoadableError(
                f"none of {', '.join(failed)} can be loaded; see the log for each. Mend the storage, or move the "
                "run's checkpoints away to start over"
            )
        return Loaded(None, failed=failed)

    def _held(self) -> dict[Position, int]:
        """Snapshots in this rank's arena that fit this layout."""
        if self._arena is None:
            return {}
        slots = self._arena.directory.slots(self._control.rank)
        return {
            Position(slot.attempt, slot.step): index
            for index, slot in slots.items()
            if index < self._arena.count
            and (slot.layout, slot.world_size) == (self._layout.digest, self._control.world_size)
        }

    def _choose(self, held: list[list[Position]]) -> list[Candidate]:
        """Rank 0: every candidate, newest first; of one state, the copy in memory first."""
        chain = read_chain(self._paths)
        everywhere = set.intersection(*(set(positions) for positions in held))
        memory = [Candidate(position, "memory") for position in everywhere if chain.holds(position)]
        stored = [Candidate(position, "storage") for position in candidates(self._paths)]
        return sorted(memory + stored, key=lambda c: (c.position, c.tier == "memory"), reverse=True)

    def _try(self, candidate: Candidate, held: dict[Position, int], state: Saveable) -> Loaded | None:
        started = time.monotonic()
        slot, buffer = self._place(candidate, held)
        problem: Exception | None = None
        filling = Filling()
        try:
            filling = self._fill(candidate, slot, buffer)
        except (DamageError, MismatchError) as error:
            problem = error
        except Exception as error:  # whatever it is, the other ranks wait to hear of it
            log.exception("%s cannot be read", candidate.position.name)
            problem = DamageError(candidate.position.name, repr(error))
        verdicts = gather(problem, self._control.group)
        for rank, verdict in enumerate(verdicts):
            if isinstance(verdict, MismatchError):
                raise MismatchError(f"{candidate.position.name}, rank {rank}: {verdict}")
        if any(verdicts):
            self._report(candidate, [verdict for verdict in verdicts if isinstance(verdict, DamageError)])
            return None
        verified = time.monotonic()
        self._apply(buffer, filling.missing, state)
        if slot is not None and candidate.tier == "storage":
            self._remember(candidate.position, slot, filling)
        took_s = time.monotonic() - verified
        return Loaded(candidate, slot, filling.read_bytes, verified - started, took_s)

    def _place(self, candidate: Candidate, held: dict[Position, int]) -> tuple[int | None, torch.Tensor]:
        if self._arena is None:
            return None, torch.zeros(self._layout.slot_bytes, dtype=torch.uint8)
        if candidate.tier == "memory":
            index = held[candidate.position]
            self._arena.wait_steady(index)
            return index, self._arena.slot(index)
        # not over a snapshot that a later candidate may need
        index = next((i for i in range(self._arena.count) if i not in held.values()), self._arena.count - 1)
        self._arena.wait_allocated(index)
        self._arena.wait_steady(index)
        self._arena.invalidate(index)
        return index, self._arena.slot(index)

    def _fill(self, candidate: Candidate, slot: int | None, buffer: torch.Tensor) -> Filling:
        ready = partial(self._landing.receive, buffer) if self._landing is not None else None
        if candidate.tier == "storage":
            directory = self._paths.checkpoints / candidate.position.name
            return fill_from_storage(directory, self._layout, buffer, ready)
        assert self._arena is not None and slot is not None
        record = self._arena.directory.slots(self._control.rank)[slot]
        verify_slot(buffer, record.cuts, record.sums, self._arena.path, ready)
        return Filling()

    def _report(self, candidate: Candidate, damage: list[DamageError]) -> None:
        if self._control.rank != 0:
            return
        # several ranks may have met the same damage
        for error in {error.path: error for error in damage}.values():
            log.warning("%s (%s) is damaged: %s", candidate.position.name, candidate.tier, error)
            self._ledger.write(
                Event.FALLBACK,
                generation=candidate.position.name,
                tier=candidate.tier,
                file=error.path,
                reason=error.reason,
            )

    def _apply(self, buffer: torch.Tensor, missing: set[str], state: Saveable) -> None:
        """From here on the model changes."""
        tensors = locals_of(state.device_tensors())
        items = [item for item in self._layout.items if item.fqn not in missing]
        if self._landing is not None and not missing:
            self._landing.deliver(tensors)
        else:
            with torch.no_grad():
                for item in items:
                    if item.on_device:
                        for source, target in matching_pieces(self._layout, item, buffer, tensors[item.fqn]):
                            target.copy_(source, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        state.load_host_state({i.fqn: self._layout.view(i, buffer).clone() for i in items if not i.on_device})

    def _remember(self, position: Position, index: int, filling: Filling) -> None:
        """What was read from storage is a snapshot in memory from now on."""
        assert self._arena is not None
        if filling.sums is None or filling.missing:
            return
        cuts = self._layout.cuts
        tail = hash_slot(self._arena.slot(index), cuts[-2:]) if cuts[-1] > cuts[-2] else []
        record = slot_record(self._arena, self._layout, position, [*filling.sums, *tail])
        publish(PosixStorage(), self._arena.record(index), seal(record))


def slot_record(arena: Arena, layout: Layout, position: Position, sums: list[str]) -> Slot:
    """The record of a slot that holds `position`."""
    return Slot(
        run=arena.directory.run,
        pod=arena.directory.pod,
        boot=boot_id(),
        rank=layout.rank,
        world_size=layout.world_size,
        attempt=position.attempt,
        step=position.step,
        layout=layout.digest,
        cuts=layout.cuts,
        sums=sums,
    )
