"""Completion indexes: of a pod, and as the text form of a Job's status (`0,2-4`)."""

from __future__ import annotations

from collections.abc import Iterable

from ops.local.kubernetes.objects import Object, annotations_of

INDEX = "batch.kubernetes.io/job-completion-index"


def index_of(pod: Object) -> int | None:
    """The pod's completion index."""
    text = annotations_of(pod).get(INDEX)
    return int(text) if text is not None else None


def parse(text: str | None) -> set[int]:
    """`0,2-4` → {0, 2, 3, 4}"""
    found: set[int] = set()
    for part in filter(None, (text or "").split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def render(indexes: Iterable[int]) -> str:
    """{0, 2, 3, 4} → `0,2-4`; two in a row stay `0,1`."""
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(indexes), None]:
        if run and index == run[-1] + 1:
            run.append(index)
            continue
        if len(run) > 2:
            parts.append(f"{run[0]}-{run[-1]}")
        else:
            parts += [str(i) for i in run]
        run = [index] if index is not None else []
    return ",".join(parts)
