"""Runs work along a dependency graph, what is independent at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter

WORKERS = 8
Work = Callable[[str], None]


def run(
    graph: Mapping[str, set[str]], work: Work, cancelled: threading.Event | None = None
) -> dict[str, Exception]:
    """Calls `work` for every node after the nodes it waits for; gives what failed.

    With `cancelled`, the first failure sets it and nothing more is started. Without, everything is
    started that does not wait for something failed.
    """
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    failed: dict[str, Exception] = {}
    running: dict[Future[None], str] = {}
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="cloudformation") as pool:
        while sorter.is_active():
            stop = bool(failed) and cancelled is not None
            for name in sorter.get_ready() if not stop else ():
                running[pool.submit(work, name)] = name
            if not running:
                break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                _settle(running.pop(future), future, sorter, failed, cancelled)
    return failed


def _settle(
    name: str,
    future: Future[None],
    sorter: TopologicalSorter[str],
    failed: dict[str, Exception],
    cancelled: threading.Event | None,
) -> None:
    error = future.exception()
    if error is None:
        sorter.done(name)
    elif isinstance(error, Exception):
        failed[name] = error
        if cancelled is not None:
            cancelled.set()
    else:
        raise error


def reverse(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph that takes away in the other order: a node waits for all that waited for it."""
    reversed_graph: dict[str, set[str]] = {name: set() for name in graph}
    for name, needs in graph.items():
        for needed in needs & set(graph):
            reversed_graph[needed].add(name)
    return reversed_graph
