"""Who waits for a round, who no longer does, and when they open it themselves."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore  # type: ignore[attr-defined]

from trainer.resilience import orphans
from trainer.resilience.orphans import SILENT_S, Size, Waiting

pytestmark = pytest.mark.unit
KEY = "barrier:round_done_3"


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_command_line_says_how_many_there_are() -> None:
    assert Size.of(["--rdzv-id=r", "--nnodes=8:10", "-m"]) == Size(8, 10)
    assert Size.of(["--nnodes", "2"]) == Size(2, 2)
    with pytest.raises(SystemExit, match="no --nnodes"):
        Size.of(["--nproc-per-node=8"])


@given(st.integers(1, 64), st.integers(0, 64), st.data())
def test_nothing_is_opened_while_a_round_may_be_whole(nodes: int, spares: int, data: st.DataObject) -> None:
    size = Size(nodes, nodes + spares)
    waiting = data.draw(st.integers(0, spares), label="pods that do not train")
    assert not size.orphaned(waiting)
    assert size.orphaned(size.pods)
    assert not size.orphaned(nodes - 1), "too few to train"
    assert not size.orphaned(nodes - 1, abandoned=True)
    assert size.orphaned(nodes, abandoned=True)


def test_who_beats_counts_and_who_falls_silent_does_not() -> None:
    store, clock = HashStore(), Clock()
    one, two = (Waiting(store, KEY, clock) for _ in range(2))
    assert (one.beat(), two.beat()) == (0, 0)  # nobody was seen twice
    clock.now_s += 1
    one.beat()
    assert (two.beat(), one.beat()) == (2, 2)
    counts = []
    for _ in range(4):
        clock.now_s += SILENT_S / 2
        counts.append(one.beat())
    assert counts == [2, 1, 1, 1]


def test_a_newcomer_does_not_count_the_dead() -> None:
    store, clock = HashStore(), Clock()
    for _ in range(5):
        Waiting(store, KEY, clock).beat()
    Waiting(store, KEY, clock)  # died before its first beat
    newcomer = Waiting(store, KEY, clock)
    counts = []
    for _ in range(4):
        counts.append(newcomer.beat())
        clock.now_s += 1
    assert counts[-1] == 1


@pytest.fixture(name="quick")
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEAT_S", "SILENT_S", "STEADY_S", "ABANDONED_S"):
        monkeypatch.setattr(orphans, name, getattr(orphans, name) / 20)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("waiting", "opened"), [(1, False), (2, True), (3, True)])
def test_enough_of_them_open_the_round(waiting: int, opened: bool) -> None:
    """Two nodes and a spare: the spare alone waits for ever, as it should."""
    store, over = HashStore(), threading.Event()
    states = [SimpleNamespace(store=store, round_done_key=KEY) for _ in range(waiting)]
    threads = [
        threading.Thread(target=orphans.open_if_orphaned, args=(state, Size(2, 3), over)) for state in states
    ]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + (10.0 if opened else 1.0)
    while time.monotonic() < end_s and not store.check([KEY]):
        time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()
    assert store.check([KEY]) is opened
    if opened:
        assert store.get(KEY) == b"0"


@pytest.mark.usefixtures("quick")
def test_nothing_is_opened_beside_ranks_that_train() -> None:
    """One pod too many, of a node that Kubernetes has given up too early, looks like a round that is not whole."""
    store, over = HashStore(), threading.Event()
    states = [SimpleNamespace(store=store, round_done_key=KEY) for _ in range(3)]
    threads = [
        threading.Thread(target=orphans.open_if_orphaned, args=(state, Size(2, 3), over)) for state in states
    ]
    for thread in threads:
        thread.start()
    for _ in range(60):
        store.add(f"{KEY}:training", 1)
        time.sleep(0.02)
    assert not store.check([KEY])
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s and not store.check([KEY]):
        time.sleep(0.01)
    over.set()
    for thread in threads:
        thread.join()
    assert store.check([KEY]), "they train no more"


def test_those_who_had_ranks_are_gone_once_they_are_silent_for_long() -> None:
    store, clock = HashStore(), Clock()
    waiting = Waiting(store, KEY, clock)
    clock.now_s += 100
    assert waiting.silent_s() is None, "none has ever shown itself: the round may still be forming"
    store.add(f"{KEY}:training", 1)
    assert waiting.silent_s() == 0
    clock.now_s += 5
    assert waiting.silent_s() == 5
    store.add(f"{KEY}:training", 1)
    assert waiting.silent_s() == 0


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("launchers_show", [False, True])
def test_a_spare_alone_takes_over_from_those_who_are_gone(launchers_show: bool) -> None:
    """One node and its spare: the pod that is lost is not replaced, so nobody else will ever wait."""
    store, over = HashStore(), threading.Event()
    store.add(f"{KEY}:training", 1)
    state = SimpleNamespace(store=store, round_done_key=KEY)
    thread = threading.Thread(target=orphans.open_if_orphaned, args=(state, Size(1, 2), over))
    thread.start()
    end_s = time.monotonic() + (2.0 if launchers_show else 10.0)
    while time.monotonic() < end_s and not store.check([KEY]):
        time.sleep(0.01)
        if launchers_show:
            store.add(f"{KEY}:training", 1)
    over.set()
    thread.join()
    assert store.check([KEY]) is not launchers_show


@pytest.mark.usefixtures("quick")
def test_a_round_that_another_has_opened_or_closed_is_left_alone() -> None:
    store, over = HashStore(), threading.Event()
    store.set(KEY, "1")
    state = SimpleNamespace(store=store, round_done_key=KEY)
    thread = threading.Thread(target=orphans.open_if_orphaned, args=(state, Size(1, 1), over))
    thread.start()
    time.sleep(0.6)
    over.set()
    thread.join()
    assert store.get(KEY) == b"1"


def test_nvrx_waits_where_it_is_watched() -> None:
    """The pinned version's own methods: what is said there is what is looked for here."""
    from nvidia_resiliency_ext.fault_tolerance.ft_rendezvous_barrier import _RendezvousBarrierState as State

    wait, ask = State._wait_for_rendezvous_open, State.is_next_round_open
    state = State(HashStore(), "r")
    assert state.store.check([state.round_done_key]) and state.round_done_key.endswith("round_done_0")
    try:
        orphans.watch(Size(1, 1))
        assert state.is_next_round_open() is False
        state.open_rendezvous()
        assert state.is_next_round_open() is True
        state.store.set(state.round_done_key, "1")
        assert state._sync_from_per_round_state()
        assert Waiting(state.store, state.round_done_key).silent_s() is not None
        assert state.store.add(f"{state.round_done_key}:training", 0) == 1, "once a second at most"
        state._wait_for_rendezvous_open("node")  # it is open
    finally:
        State._wait_for_rendezvous_open, State.is_next_round_open = wait, ask
