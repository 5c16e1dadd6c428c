"""A container's log: whole, its tail, the run before, or followed to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from ops.local.kubernetes.errors import bad_request
from ops.local.kubernetes.objects import Object, is_finished_pod, uid_of
from ops.local.kubernetes.selectors import number
from ops.local.kubernetes.store import Ref, Store

_POLL_S = 0.1
_BLOCK = 1 << 16


def read_log(store: Store, pods: Path, ref: Ref, options: dict[str, str]) -> Iterator[bytes]:
    """The bytes that `kubectl logs` shows. Refusals come before the first byte."""
    pod = store.get(ref)
    container = _container(pod, options.get("container"))
    runs = sorted((pods / uid_of(pod) / container).glob("*/log"), key=lambda p: int(p.parent.name))
    previous, following = options.get("previous") == "true", options.get("follow") == "true"
    if previous and len(runs) < 2:
        raise bad_request(f'previous terminated container "{container}" in pod "{ref.name}" not found')
    if not runs and not following:
        raise bad_request(f'container "{container}" in pod "{ref.name}" is waiting to start: ContainerCreating')
    tail = number(options, "tailLines")
    if following and not previous:
        return _follow(store, pods, ref, container, tail)
    return iter([_last_lines(runs[-2 if previous else -1].read_bytes(), tail)])


def _container(pod: Object, wanted: str | None) -> str:
    spec = pod["spec"]
    main = [c["name"] for c in spec["containers"]]
    known = [*main, *(c["name"] for c in spec.get("initContainers") or [])]
    if wanted is None:
        if len(main) > 1:
            raise bad_request(f"a container name must be specified, choose one of: {known}")
        return str(main[0])
    if wanted not in known:
        raise bad_request(f"container {wanted} is not valid for pod {pod['metadata']['name']}")
    return wanted


def _last_lines(data: bytes, count: int | None) -> bytes:
    if count is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""


def _follow(store: Store, pods: Path, ref: Ref, container: str, tail: int | None) -> Iterator[bytes]:
    """Until the container has ended and all of it is sent."""
    uid = uid_of(store.get(ref))
    offset: int | None = None
    while True:
        over = _is_over(store, ref, uid, container)
        runs = sorted((pods / uid / container).glob("*/log"), key=lambda p: int(p.parent.name))
        if runs:
            if offset is None:
                present = runs[-1].read_bytes()
                offset = len(present)
                yield _last_lines(present, tail)
            while block := _read_from(runs[-1], offset):
                offset += len(block)
                yield block
        if over:
            return
        time.sleep(_POLL_S)


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_BLOCK)
    except FileNotFoundError:
        return b""


def _is_over(store: Store, ref: Ref, uid: str, container: str) -> bool:
    pod = store.peek(ref)
    if pod is None or uid_of(pod) != uid or is_finished_pod(pod):
        return True
    status = pod.get("status", {})
    statuses = [*(status.get("containerStatuses") or []), *(status.get("initContainerStatuses") or [])]
    return any(s["name"] == container and s["state"].get("terminated") for s in statuses)
