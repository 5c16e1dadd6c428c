"""Templates and manifests on disk: what `deploy` and `submit` would use, without network or credentials."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from environments.environment import Environment
from k8s.run_spec import RunSpec
from ops.errors import InvalidInputError
from ops.files import write_atomically
from ops.tree_digest import local_image

if TYPE_CHECKING:
    from k8s.storage import LustreVolume


@dataclass(frozen=True)
class Synthesized:
    """What was written."""

    folder: Path
    templates: list[str]
    manifests: list[str]
    left_out: str | None
    """Why there is no Job."""

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        listed = {"templates": self.templates, "manifests": self.manifests}
        return {"folder": str(self.folder), **listed, "left_out": self.left_out}

    def show(self, console: Console) -> None:
        """For people."""
        console.print(f"{self.folder}: {len(self.templates)} templates, {len(self.manifests)} manifests")
        if self.left_out:
            console.print(self.left_out)


def synthesize(
    environment: Environment, out: Path, *, image: str | None = None, run: str = "example", local: bool = False
) -> Synthesized:
    """Write `out/*.template.json` (a cloud assembly) and `out/manifests/*.yaml`.

    Without an image there is no Job, and the result says so. Raises InvalidRunError, and InvalidInputError when
    nothing can be written there.
    """
    _check_writable(out)
    from infra.app import build  # jsii starts a Node process: only when it is needed
    from k8s.manifest import manifests
    from k8s.training_job import run_manifests

    image = image or environment.image or (local_image(environment) if local else None)
    folder = out / "manifests"
    written = []
    if image:  # first, since it may be refused and templates take seconds
        documents = run_manifests(environment, RunSpec(run, 1, image))
        written.append(_write(folder / f"run-{run}.yaml", documents))
    build(environment, out)
    charts = plugin_charts(environment)
    written += [_write(folder / f"{chart.node.id}.yaml", manifests([chart])) for chart in charts]
    return Synthesized(
        folder=out,
        templates=sorted(path.name for path in out.glob("*.template.json")),
        manifests=sorted(written),
        left_out=None if image else "no Job: `image` is not set; `steadfast image push` sets it, or pass --image",
    )


def _check_writable(folder: Path) -> None:
    """Before jsii, whose Node process fails in its own words, or never ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInputError(
            f"--out: {folder}: {error.strerror or error}", fix="name a folder that you may write to"
        ) from None


def plugin_charts(environment: Environment, volume: LustreVolume | None = None) -> Sequence[Any]:
    """What the cluster gets once; without a volume with stand-ins for what CloudFormation fills in."""
    import cdk8s

    from k8s.cluster_charts import LustreVolume, cluster_charts

    stand_in = LustreVolume(
        file_system_id="fs-00000000000000000", dns_name="file-system.invalid", mount_name="mountname"
    )
    return cluster_charts(cdk8s.App(), environment, volume or stand_in)


def cluster_documents(environment: Environment, volume: LustreVolume | None = None) -> list[dict[str, Any]]:
    """The same as plain dictionaries, in the order in which they are applied."""
    from k8s.manifest import manifests

    return manifests(plugin_charts(environment, volume))


def _write(path: Path, documents: Sequence[Any]) -> str:
    write_atomically(path, yaml.safe_dump_all(documents, sort_keys=False))
    return path.name
