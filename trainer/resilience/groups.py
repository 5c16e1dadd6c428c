"""Letting go of an attempt's groups, so that their sockets close and peers that wait in a collective see it.

`destroy_process_group` takes them out of torch's tables; gloo closes a socket with the last reference to its
group, and its `abort` does nothing (torch 2.13). Until then peers wait for the collective's whole timeout.
"""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress

log = logging.getLogger(__name__)


def let_go(error: BaseException | None) -> None:
    """Of all that the attempt ended by `error` still holds: in frames it came through, and in torch's caches."""
    errors, seen = [error], set[int]()
    while errors:
        if (error := errors.pop()) is not None and id(error) not in seen:
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            errors += [error.__cause__, error.__context__]
    for clear in _caches_of_meshes():
        clear()
    gc.collect()


def _caches_of_meshes() -> Iterator[Callable[[], object]]:
    """DTensor's caches are keyed by meshes, which hold groups; they fill again. Private, and in another torch not
    all there."""
    from torch.distributed.tensor import _collective_utils, _redistribute, debug

    with suppress(AttributeError):
        yield debug._clear_sharding_prop_cache
    with suppress(AttributeError):
        yield _redistribute._gen_transform_infos.cache_clear
    with suppress(AttributeError):
        yield _redistribute.clear_redistribute_planner_cache
    with suppress(AttributeError):
        yield _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear
