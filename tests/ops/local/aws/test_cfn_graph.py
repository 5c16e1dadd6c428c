"""Work along a graph: order, concurrency, what a failure stops."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.local.aws.cloudformation import graph

pytestmark = pytest.mark.unit

GRAPHS = st.dictionaries(st.integers(0, 12), st.sets(st.integers(0, 12))).map(
    lambda edges: {str(n): {str(m) for m in needs if m < n and m in edges} for n, needs in edges.items()}
)


@given(GRAPHS)
def test_every_node_comes_after_what_it_needs(needs: dict[str, set[str]]) -> None:
    done: list[str] = []
    assert graph.run(needs, done.append) == {}
    assert sorted(done) == sorted(needs)
    assert all(done.index(needed) < done.index(name) for name, all_of in needs.items() for needed in all_of)


@given(GRAPHS)
def test_reversed_twice_is_the_graph_itself(needs: dict[str, set[str]]) -> None:
    assert graph.reverse(graph.reverse(needs)) == needs


def test_what_is_independent_runs_at_once() -> None:
    meeting = threading.Barrier(2, timeout=10)
    assert graph.run({"a": set(), "b": set()}, lambda _: meeting.wait()) == {}  # type: ignore[arg-type]


def test_the_first_failure_cancels_and_nothing_more_starts() -> None:
    cancelled, begun = threading.Event(), []

    def work(name: str) -> None:
        begun.append(name)
        if name == "a":
            raise ValueError(name)

    failed = graph.run({"a": set(), "b": {"a"}, "c": {"b"}}, work, cancelled)
    assert begun == ["a"]
    assert list(failed) == ["a"]
    assert cancelled.is_set()


def test_without_cancelling_only_the_dependents_of_a_failure_stay() -> None:
    begun: set[str] = set()

    def work(name: str) -> None:
        begun.add(name)
        if name == "a":
            raise ValueError(name)

    assert list(graph.run({"a": set(), "b": {"a"}, "c": set(), "d": {"c"}}, work)) == ["a"]
    assert begun == {"a", "c", "d"}
