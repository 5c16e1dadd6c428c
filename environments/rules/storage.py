"""FSx for Lustre and its links to buckets: what the API refuses after ten minutes, or takes and loses data by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from environments.problems import Problem
from environments.sections import Association

if TYPE_CHECKING:
    from environments.environment import Environment

_STEP_GIB = 2400
_SMALLEST_GIB = 1200
EFA_STEP_GIB = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
"""By throughput per TiB: one EFA file server's storage (Lustre guide, "Increasing storage capacity")."""
LUSTRE_PORTS = ((988, 988), (1018, 1023))
"""LNet: the well-known port, and those from which servers call clients back (Lustre guide, access control)."""
_METADATA_IOPS = (1500, 3000, 6000, *range(12000, 192001, 12000))
RUNS = PurePosixPath("/runs")
DATA = PurePosixPath("/data")
_S3_BEGINNINGS = ("xn--", "sthree-", "amzn-s3-demo-")
_S3_ENDS = ("-s3alias", "--ol-s3", "--x-s3", "--table-s3")
_GRAIN_SOURCE = "Lustre guide, storage capacity"


def size_is_a_step(env: Environment) -> Iterator[Problem]:
    """Linters take 1300 GiB; FSx does not."""
    section = env.file_system
    size = section.size_gib
    if section.efa:
        step = EFA_STEP_GIB[section.throughput_mbps_per_tib]
        if size % step:
            yield Problem(
                "file_system.size_gib",
                f"{size} is not a multiple of {step}, which an EFA server holds at "
                f"{section.throughput_mbps_per_tib} MB/s per TiB",
                f"{step}, {2 * step}, {3 * step}, …",
                f"use {max(1, -(-size // step)) * step}, another throughput, or efa: false",
                "Lustre guide, increase-storage-capacity",
            )
    elif size != _SMALLEST_GIB and size % _STEP_GIB:
        yield Problem(
            "file_system.size_gib",
            f"{size} is not a size that FSx has",
            "1200, 2400, 4800, 7200, …",
            f"use {max(1, -(-size // _STEP_GIB)) * _STEP_GIB}",
            _GRAIN_SOURCE,
        )


def metadata_iops_is_a_step(env: Environment) -> Iterator[Problem]:
    """Provisioned metadata comes in steps."""
    iops = env.file_system.metadata_iops
    if iops != "automatic" and iops not in _METADATA_IOPS:
        yield Problem(
            "file_system.metadata_iops",
            f"{iops} is not a step",
            "automatic, 1500, 3000, 6000, or a multiple of 12000 up to 192000",
            "use automatic, which follows the size",
            "Lustre guide, metadata configuration",
        )


def paths_do_not_overlap(env: Environment) -> Iterator[Problem]:
    """FSx refuses associations whose directories lie in each other."""
    yield from _overlaps(env, "path", lambda association: PurePosixPath(association.path))


def prefixes_do_not_overlap(env: Environment) -> Iterator[Problem]:
    """And those whose prefixes do: an export would be imported again."""
    archive = env.archive.prefix

    def key(association: Association) -> PurePosixPath:
        if association.bucket:
            return PurePosixPath("/", association.bucket, association.prefix)
        return PurePosixPath("/", env.archive.bucket or "", archive, association.prefix)

    yield from _overlaps(env, "prefix", key)


def _overlaps(env: Environment, name: str, key: Callable[[Association], PurePosixPath]) -> Iterator[Problem]:
    numbered = list(enumerate(env.file_system.associations))
    for (_, first), (number, second) in combinations(numbered, 2):
        one, other = key(first), key(second)
        if one.is_relative_to(other) or other.is_relative_to(one):
            yield Problem(
                f"file_system.associations.{number}.{name}",
                f"{getattr(second, name)} overlaps {getattr(first, name)}",
                "paths and prefixes that do not lie in each other",
                "separate them",
                "Lustre guide, data repository associations",
            )


def deletions_are_not_exported(env: Environment) -> Iterator[Problem]:
    """`rm -rf` before teardown would empty the archive."""
    for number, association in enumerate(env.file_system.associations):
        if "DELETED" in association.exports:
            yield Problem(
                f"file_system.associations.{number}.exports",
                "DELETED takes every file out of the bucket that is deleted on the file system, pruned and "
                "mistaken alike",
                "NEW and CHANGED",
                "remove DELETED; the bucket's lifecycle is where old files end",
                "Lustre guide, AutoExportPolicy",
            )


def associations_do_something(env: Environment) -> Iterator[Problem]:
    """One without events is a link that never moves a byte by itself."""
    for number, association in enumerate(env.file_system.associations):
        if not association.imports and not association.exports:
            yield Problem(
                f"file_system.associations.{number}",
                f"{association.path} has neither imports nor exports",
                "events from NEW, CHANGED, DELETED",
                "add imports: [NEW, CHANGED] to read, or exports: [NEW, CHANGED] to keep",
                "Lustre guide, data repository associations",
            )


def runs_are_exported(env: Environment) -> Iterator[Problem]:
    """Checkpoints that never leave the file system end with it."""
    kept = [
        association
        for association in env.file_system.associations
        if RUNS.is_relative_to(association.path) and {"NEW", "CHANGED"} <= set(association.exports)
    ]
    if not kept:
        yield Problem(
            "file_system.associations",
            "nothing exports /runs: checkpoints would end with the file system",
            "one association whose path holds /runs, with exports: [NEW, CHANGED]",
            "add `{path: /runs, prefix: runs, exports: [NEW, CHANGED]}`",
            "Lustre guide, AutoExportPolicy",
        )


def data_has_a_source(env: Environment) -> Iterator[Problem]:
    """`steadfast data put` writes into the bucket; runs read /data."""
    if not any(DATA.is_relative_to(item.path) and item.imports for item in env.file_system.associations):
        yield Problem(
            "file_system.associations",
            "nothing imports into /data, where runs read their input",
            "one association whose path holds /data, with imports",
            "add `{path: /data, prefix: input, imports: [NEW, CHANGED, DELETED]}`",
            "Lustre guide, AutoImportPolicy",
        )


def bucket_name_is_one(env: Environment) -> Iterator[Problem]:
    """Dots break TLS for virtual-hosted buckets, and we allow TLS only; some beginnings and ends are S3's own."""
    named: dict[str, str | None] = {"archive.bucket": env.archive.bucket}
    if not env.archive.bucket:
        named = {"name": env.name}
    for number, association in enumerate(env.file_system.associations):
        named[f"file_system.associations.{number}.bucket"] = association.bucket
    for field, name in named.items():
        taken = [part for part in _S3_BEGINNINGS if name and name.startswith(part)]
        taken += [part for part in _S3_ENDS if name and name.endswith(part) and field != "name"]
        if name and "." in name:
            what = f"{name} has a dot: its TLS certificate would not match, and we allow TLS only"
        elif taken:
            what = f"{name} begins or ends with {taken[0]}, which S3 keeps for itself"
        else:
            continue
        allowed = "lower-case letters, digits and dashes"
        yield Problem(field, what, allowed, "choose another name", "S3 bucket naming rules")


RULES = (
    size_is_a_step,
    metadata_iops_is_a_step,
    paths_do_not_overlap,
    prefixes_do_not_overlap,
    deletions_are_not_exported,
    associations_do_something,
    runs_are_exported,
    data_has_a_source,
    bucket_name_is_one,
)
