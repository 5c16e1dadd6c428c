"""Cycles go at the steps at which they should, and at no others."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from trainer.garbage import Collector

pytestmark = pytest.mark.unit


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(name="collector")
def _collector() -> Iterator[Collector]:
    collector = Collector(3)
    collector.take_over()
    yield collector
    collector.give_back()


def alive(reference: weakref.ref[Node]) -> bool:
    return reference() is not None


def test_young_cycles_go_at_every_third_step_only(collector: Collector) -> None:
    node = weakref.ref(Node())
    many = [Node() for _ in range(10_000)]  # Python's own would have come by now
    assert alive(node) and many
    for number in (1, 2):
        collector.after_step(number)
        assert alive(node)
    collector.after_step(3)
    assert not alive(node)


def test_old_objects_are_not_looked_at(collector: Collector) -> None:
    """A full collection takes as long as a step, or several."""
    node = Node()
    gone = weakref.ref(node)
    collector.after_step(3)  # it has lived through a collection: it is old
    del node
    collector.after_step(6)
    assert alive(gone)
    gc.collect()
    assert not alive(gone)


def test_python_collects_again_afterwards() -> None:
    collector = Collector(1)
    collector.take_over()
    assert not gc.isenabled()
    collector.give_back()
    assert gc.isenabled()
