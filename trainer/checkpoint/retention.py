"""Which generations stay, and who sweeps up. Imports no torch.

Only committed generations count, deletion comes after the newer commit, and the newest `keep` (at least two) of
the chain are never touched. Behind them `keep_spaced` older ones stay, spread over time.
"""

from __future__ import annotations

import logging
from pathlib import Path

from trainer.checkpoint.chain import Position, committed, newest_attempt, parse_position, read_chain
from trainer.checkpoint.records import COMMIT, Commit, DamageError, load
from trainer.checkpoint.storage import remove_tree
from trainer.paths import RunPaths

log = logging.getLogger(__name__)


def thin(times: list[float], count: int) -> list[int]:
    """Indices of `count` of the ascending `times`, spread out: again and again the most crowded one goes.

    The oldest stays, so that repeated thinning keeps a long tail instead of a moving window.
    """
    kept = list(range(len(times)))
    if count < 2:
        return kept[:count]
    while len(kept) > count:
        gaps = [times[kept[i + 1]] - times[kept[i - 1]] for i in range(1, len(kept) - 1)]
        kept.pop(1 + min(range(len(gaps)), key=gaps.__getitem__))
    return kept


def to_delete(paths: RunPaths, keep: int, keep_spaced: int) -> list[Position]:
    """Committed generations that may go now."""
    chain = read_chain(paths)
    whole = [(position, record) for position in committed(paths) if (record := _sound(paths, position))]
    on_chain = [(position, record) for position, record in whole if chain.holds(position)]
    if len(on_chain) < keep:
        return []
    older = on_chain[:-keep]
    spaced = {older[i][0] for i in thin([record.wall_s for _, record in older], keep_spaced)}
    off = [position for position in committed(paths) if not chain.holds(position)]
    abandoned = [position for position in off if position.attempt >= chain.lost]
    return [position for position, _ in older if position not in spaced] + abandoned


def prune(paths: RunPaths, keep: int, keep_spaced: int) -> list[str]:
    """Delete what may go; returns the names. Called by rank 0's writer after a commit."""
    gone = to_delete(paths, keep, keep_spaced)
    for position in gone:
        remove_tree(paths.checkpoints / position.name, first=COMMIT)
    return [position.name for position in gone]


def _sound(paths: RunPaths, position: Position) -> Commit | None:
    """The record if it is whole and every file has its size: others neither count nor push good ones out."""
    directory = paths.checkpoints / position.name
    try:
        record = load(Commit, directory / COMMIT)
    except DamageError:
        return None
    if record.generation != position.name:
        return None
    return record if all(_has_size(directory / n, f.bytes) for n, f in record.files.items()) else None


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False


def clear_failed(directory: Path) -> None:
    """Free the disk at once; the notes stay until a later commit, for ranks that still wait for this save."""
    for path in directory.glob("*"):
        if not path.name.startswith("fail."):
            path.unlink(missing_ok=True)


def sweep_failed(paths: RunPaths, done: Position) -> list[str]:
    """Remove what failed saves of this attempt have left, once a later one is committed."""
    gone = []
    for directory in paths.checkpoints.glob(f"step-*.{done.attempt}"):
        position = parse_position(directory.name)
        if position is not None and position.step < done.step and not (directory / COMMIT).exists():
            remove_tree(directory, first=COMMIT)
            gone.append(directory.name)
    return gone


def sweep(paths: RunPaths) -> list[str]:
    """Remove what no live attempt owns: directories without commit of older attempts, temporary files.

    Called by rank 0 at the start of an attempt, which is the newest then. A ghost that still writes into such a
    directory loses it under its feet and could not have committed anyway.
    """
    gone = []
    for directory in paths.checkpoints.iterdir():
        position = parse_position(directory.name)
        if position is None or position.attempt >= newest_attempt(paths):
            continue
        if not (directory / COMMIT).exists():
            remove_tree(directory, first=COMMIT)
            gone.append(directory.name)
        else:
            for leftover in directory.glob(".*.tmp"):
                leftover.unlink(missing_ok=True)
    if gone:
        log.info("removed unfinished generations of earlier attempts: %s", ", ".join(sorted(gone)))
    return gone
