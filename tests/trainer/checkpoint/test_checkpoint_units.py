"""The parts of the engine that need no processes: records, chain, retention, intervals, decisions, overlaps."""

from __future__ import annotations

import io
import itertools
import pickle
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.checkpoint import faults, layout, staging
from trainer.checkpoint.arena import ArenaDirectory, ArenaError, check_memory
from trainer.checkpoint.chain import Position
from trainer.checkpoint.decisions import Action, Board, Decision
from trainer.checkpoint.layout import Item, Part, archive, data_offset
from trainer.checkpoint.reading import MismatchError, _box, _overlap, _unpickle, compare
from trainer.checkpoint.records import (
    BLOCK_BYTES,
    Attempt,
    Commit,
    DamageError,
    FileRecord,
    block_spans,
    seal,
    unseal,
)
from trainer.checkpoint.state import ModuleState, is_ranked, unlisted
from trainer.checkpoint.storage import PosixStorage, publish
from trainer.files import temporary_beside
from trainer.paths import RunPaths

pytestmark = pytest.mark.unit


def commit(name: str = "step-00000010.1", **changes: Any) -> Commit:
    fields: dict[str, Any] = {
        "generation": name,
        "step": 10,
        "attempt": 1,
        "origin": None,
        "world_size": 1,
        "files": {"__0_0.distcp": FileRecord("l", [0, 0, 0], [])},
        "metadata": FileRecord("", [0, 0], []),
        "writer": "steadfast",
        "wall_s": 0.0,
    }
    return Commit(**{**fields, **changes})


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_no_flipped_bit_survives_in_a_record(at: int, bit: int) -> None:
    good = bytearray(seal(commit()))
    good[at % len(good)] ^= 1 << bit
    with pytest.raises(DamageError):
        unseal(Commit, bytes(good), Path("commit.json"))


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b"[]"])
def test_what_is_no_record_is_damage(data: bytes) -> None:
    with pytest.raises(DamageError, match=r"commit\.json"):
        unseal(Commit, data, Path("commit.json"))


def test_a_record_that_is_cut_anywhere_is_damage() -> None:
    """NVRx PR#365: storage without an atomic rename shows what has arrived; the last byte makes a commit."""
    whole = seal(commit())
    for length in range(len(whole)):
        with pytest.raises(DamageError, match=r"commit\.json"):
            unseal(Commit, whole[:length], Path("commit.json"))


def test_record_of_another_kind_is_damage() -> None:
    with pytest.raises(DamageError, match="another schema or kind"):
        unseal(Attempt, seal(commit()), Path("1.json"))


GOLDEN = (
    b'{"schema":1,"kind":"Commit","generation":"step-00000010.1","step":10,"attempt":1,"from":null,"world_size":1,'
    b'"files":{"__0_0.distcp":{"layout":"l","cuts":[0,0,0],"sums":[]}},"metadata":{"layout":"","cuts":[0,0],"sums":[]},'
    b'"writer":"steadfast","wall_s":0.0,"checksum":"a08d7fe480b13deb"}'
)


def test_records_of_schema_1_stay_readable() -> None:
    """pytorch PR#139949, PR#190877: checkpoints of earlier versions. Bytes as they were first written."""
    assert unseal(Commit, GOLDEN, Path("commit.json")) == commit()


def test_damage_travels_between_ranks() -> None:
    error = pickle.loads(pickle.dumps(DamageError("a/b", "torn")))
    assert (error.path, error.reason) == ("a/b", "torn")


@given(cuts=st.lists(st.integers(0, 3 * BLOCK_BYTES), min_size=1, max_size=4).map(sorted))
def test_blocks_cover_everything_once_and_cross_no_cut(cuts: list[int]) -> None:
    cuts = [0, *cuts]
    spans = block_spans(cuts)
    assert sum(end - start for start, end in spans) == cuts[-1]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(spans))
    assert all(0 < end - start <= BLOCK_BYTES for start, end in spans)
    assert not any(start < cut < end for cut in cuts for start, end in spans)


@given(
    step=st.integers(0, 10**8),
    action=st.sampled_from(list(Action)),
    stage=st.sampled_from(["", "host", "device"]),
    reason=st.text(),
)
def test_decisions_survive_the_store(step: int, action: Action, stage: str, reason: str) -> None:
    decision = Decision(step, action, stage, reason)
    assert Decision.decode(decision.encode()) == decision


def test_ranks_read_what_rank_0_publishes_and_miss_it_by_name() -> None:
    store = dist.HashStore()
    lead, follower = Board(store, 0, 1, 1.0), Board(store, 1, 1, 1.0)
    decision = Decision(1, Action.PERSIST, "", "every 1 steps")
    lead.publish(decision)
    lead.send(decision)
    assert follower.of(1) == lead.of(1) == decision
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"rank 0 has decided nothing about step 2"):
        follower.of(2)
    assert time.monotonic() - started < 3
    follower.close()


def test_reading_a_decision_costs_microseconds() -> None:
    """Training finds it in memory; the thread has read ahead."""
    store = dist.HashStore()
    lead, follower = Board(store, 0, 1, 5.0), Board(store, 1, 1, 5.0)
    for step in range(1, 61):
        lead.send(Decision(step, Action.NONE))
    follower.of(60)
    started = time.perf_counter()
    for _ in range(100):
        follower.of(60)
    assert (time.perf_counter() - started) / 100 < 1e-3
    follower.close()


SIZES: list[tuple[int, ...]] = [(), (0,), (1,), (5,), (33, 7), (0, 8), (2, 3, 4), (300, 40)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("sizes", SIZES)
def test_archive_is_byte_for_byte_what_torch_writes(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.arange(max(1, torch.Size(sizes).numel())).to(dtype)[: torch.Size(sizes).numel()].reshape(sizes)
    parts, data_at, total = archive(sizes, dtype)
    image = bytearray(total)
    for at, part in parts:
        image[at : at + len(part)] = part
    image[data_at : data_at + tensor.nbytes] = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    with layout._constant_archives():
        expected = io.BytesIO()
        torch.save(tensor.clone(), expected)
    assert bytes(image) == expected.getvalue()
    assert torch.equal(torch.load(io.BytesIO(image), weights_only=True), tensor)
    assert zipfile.ZipFile(io.BytesIO(image)).namelist()


@given(end=st.integers(0, 1 << 20), nbytes=st.integers(0, 1 << 14))
def test_data_offset_follows_from_the_item_alone(end: int, nbytes: int) -> None:
    at = data_offset(end, nbytes)
    assert end < at <= end + 4096
    assert at % (4096 if nbytes >= 4096 else 1024) == 0


boxes = st.integers(1, 3).flatmap(
    lambda dims: st.tuples(*(st.tuples(*(st.tuples(st.integers(0, 4), st.integers(0, 5)),) * dims),) * 2)
)


@settings(max_examples=200)
@given(boxes)
def test_any_part_of_any_chunk_lands_where_it_belongs(chunks: Any) -> None:
    """Resharding: copy what two boxes of a tensor share by runs of bytes, compare with indexing."""
    (source_box, target_box) = chunks
    whole = torch.arange(10 ** len(source_box), dtype=torch.int16).reshape([10] * len(source_box))
    source = whole[tuple(slice(o, o + n) for o, n in source_box)].clone()
    expected = torch.full([n for _, n in target_box], -1, dtype=torch.int16)
    item = Item(
        "x", tuple(o for o, _ in target_box), tuple(n for _, n in target_box), torch.int16, 64, True, Part.OWN
    )
    offsets, sizes = tuple(o for o, _ in source_box), tuple(n for _, n in source_box)
    overlap = _overlap(item, offsets, sizes)
    memory = bytearray(64) + bytearray(expected.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    stored = source.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    if overlap is not None:
        for segment in _box(item, offsets, sizes, overlap, data_at=0):
            memory[segment.to : segment.to + segment.nbytes] = stored[segment.at : segment.at + segment.nbytes]
        inside = tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(overlap, target_box, strict=True))
        expected[inside] = whole[tuple(slice(a, b) for a, b in overlap)]
    assert memory[64:] == expected.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@given(start=st.integers(0, 10**6), size=st.integers(0, 10**6), unit=st.integers(1, 10**5))
def test_pieces_cross_no_registration(start: int, size: int, unit: int) -> None:
    unit = max(unit, size // 50 + 1)
    cut = list(staging.pieces(start, start + size, unit))
    assert sum(b - a for a, b in cut) == size
    assert all(a // unit == (b - 1) // unit for a, b in cut)


def test_item_across_registrations_is_copied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA refuses a copy that straddles two cudaHostRegister calls (seen on an H200)."""
    monkeypatch.setattr(staging, "PINNED_BYTES", 64)
    tensor, slot = torch.arange(100, dtype=torch.float32), torch.zeros(512, dtype=torch.uint8)
    item = Item("x", (0,), (100,), torch.float32, 32, True, Part.OWN)
    for in_slot, in_tensor in staging.matching_pieces(None, item, slot, tensor):  # type: ignore[arg-type]
        assert in_slot.nbytes <= 64
        in_slot.copy_(in_tensor)
    assert torch.equal(slot[32:432].view(torch.float32), tensor)


def test_foreign_pickle_is_refused() -> None:
    """pytorch#127351: `.metadata` is a plain pickle on shared storage."""
    evil = b"cos\nsystem\n(S'true'\ntR."
    with pytest.raises(DamageError, match=r"refuses (os|posix)\.system"):
        _unpickle(evil, Path(".metadata"))
    with pytest.raises(DamageError, match="holds a dict"):
        _unpickle(pickle.dumps({}), Path(".metadata"))


def metadata(**tensors: torch.Tensor) -> Any:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner()
    planner.set_up_planner(dict(tensors), None, True)
    return planner.create_global_plan([planner.create_local_plan()])[1]


def test_strict_both_ways_names_every_key() -> None:
    """e12: plain DCP ignores an extra key and casts silently."""
    ours = metadata(a=torch.zeros(4), b=torch.zeros(4), c=torch.zeros(4), d=torch.zeros(4))
    theirs = metadata(a=torch.zeros(4), b=torch.zeros(6), c=torch.zeros(4, dtype=torch.bfloat16), e=torch.zeros(1))
    with pytest.raises(MismatchError) as caught:
        compare(ours, theirs, same_world=False)
    for text in (
        "b: is torch.float32 (4,) here",
        "c: is",
        "d: not in the generation",
        "e: in the generation, not",
    ):
        assert text in str(caught.value)


def test_rank_qualified_keys_may_come_and_go_with_the_world_size() -> None:
    one = metadata(**{"w": torch.zeros(1), "rng.rank0.cpu": torch.zeros(2)})
    two = metadata(**{"w": torch.zeros(1), "rng.rank0.cpu": torch.zeros(2), "rng.rank1.cpu": torch.zeros(2)})
    assert compare(two, one, same_world=False) == {"rng.rank1.cpu"}
    assert compare(one, two, same_world=False) == set()
    with pytest.raises(MismatchError, match=r"rng\.rank1\.cpu"):
        compare(two, one, same_world=True)


@pytest.mark.parametrize(
    ("name", "ranked"), [("rng.rank3.cpu", True), ("model.rank.w", False), ("a.rankx.b", False), ("rank0", True)]
)
def test_rank_qualified_names(name: str, ranked: bool) -> None:
    assert is_ranked(name) == ranked


def test_unlisted_tensors_are_named() -> None:
    """EasyR1#275, pytorch#192224: optimizer state that nobody saves."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        optimizer.state[parameter] = {"exp_avg": torch.zeros_like(parameter)}
    state = ModuleState(model, optimizer, 0, lambda: 0, lambda step: None)
    assert unlisted(state, model, optimizer) == []

    class Forgetful(ModuleState):
        def device_tensors(self) -> dict[str, torch.Tensor]:
            return {k: v for k, v in super().device_tensors().items() if "exp_avg" not in k and "weight" not in k}

    missing = unlisted(Forgetful(model, optimizer, 0, lambda: 0, lambda step: None), model, optimizer)
    assert missing == ["model.0.weight", "model.1.weight", *(f"optim.{n}.exp_avg" for n, _ in [
        ("0.bias", 0), ("0.weight", 0), ("1.bias", 0), ("1.weight", 0)])]  # fmt: skip


def test_memory_is_refused_with_what_to_change(tmp_path: Path) -> None:
    """nccl#525, kubernetes#76263: /dev/shm of 64 MB; radixark PR#61: 650 of 780 GB staged at the first save."""
    with pytest.raises(ArenaError, match=r"more than 45% of the .* limit\. Set checkpoint\.host_slots to 1"):
        check_memory(10**15, 2, 0.45, tmp_path, slots=2)
    check_memory(1, 1, 0.45, tmp_path, slots=1)


def test_what_another_run_or_pod_left_is_swept_unless_alive(tmp_path: Path) -> None:
    """ami-data-companion#140, olmoearth#563: shared memory piles up after restarts."""
    dead, alive = ArenaDirectory(tmp_path, "old", "pod"), ArenaDirectory(tmp_path, "other", "pod")
    dead.close()
    mine = ArenaDirectory(tmp_path, "new", "pod")
    assert not dead.path.exists() and alive.path.exists() and mine.path.exists()
    alive.close()
    mine.close()


def test_writer_modules_do_not_import_torch() -> None:
    modules = "writer, records, chain, retention, faults, storage, reports, verify"
    code = f"from trainer.checkpoint import {modules}; import sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_unknown_fault_point_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such point: nowhere"):
        faults.arm(RunPaths(tmp_path), faults.StorageFault("x", "nowhere", "EIO"))


@pytest.mark.parametrize("point", ["write", "fsync", "close", "rename"])
def test_a_record_that_could_not_be_published_is_not_in_the_way_of_the_next(tmp_path: Path, point: str) -> None:
    """A disk that was full once: the same process publishes the same record again, under the same name."""
    failing = faults.FaultyStorage([faults.StorageFault("full", point, "ENOSPC")], lambda harm: None)
    path = tmp_path / "slot.json"
    with pytest.raises(OSError, match="No space left"):
        publish(failing, path, b"first")
    assert list(tmp_path.iterdir()) == []
    publish(PosixStorage(), path, b"second")
    assert [p.name for p in tmp_path.iterdir()] == ["slot.json"] and path.read_bytes() == b"second"


def test_what_a_killed_process_of_the_same_number_left_is_not_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "slot.json"
    temporary_beside(path).write_bytes(b"half")
    publish(PosixStorage(), path, b"whole")
    assert [p.name for p in tmp_path.iterdir()] == ["slot.json"] and path.read_bytes() == b"whole"


def test_fault_hits_as_many_saves_as_it_says(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    faults.arm(paths, faults.StorageFault("x", "write", "EIO", rank=1, from_step=10, saves=2))
    hit: Callable[[int, int], bool] = lambda rank, step: isinstance(  # noqa: E731
        faults.storage_for(paths, rank=rank, step=step, generation=Position(1, step).name), faults.FaultyStorage
    )
    assert [hit(1, step) for step in (5, 10, 10, 20, 30)] == [False, True, True, True, False]
    assert not hit(0, 10)
    faults.arm(paths, faults.StorageFault("y", "write", "EIO"))
    assert [fault.id for fault in faults.armed(paths)] == ["x", "y"]
    faults.disarm(paths)
    assert not faults.armed(paths) and not hit(1, 10)
