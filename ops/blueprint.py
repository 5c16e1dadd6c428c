"""New environment files: from the commented pattern, or from another file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from environments.environment import FOLDER, load, parse
from environments.files import read, write_value
from ops.errors import InvalidInputError, RefusedError
from ops.files import write_atomically

NAME = re.compile(r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")

PATTERN = """\
# What `steadfast` makes, trains in and takes away. Every field that is not here has a default.
name: {name}
region: us-east-1
# One zone for GPU nodes, file system and reservation; it never changes afterwards.
availability_zone: us-east-1a
instance_type: p5.48xlarge
# Nodes that train, and nodes that wait for one of them to fail.
nodes: 2
spares: 0

# Where the GPUs come from: on-demand; odcr with `reservation`; capacity-block with `reservation`, `start`, `end`.
capacity:
  kind: on-demand

file_system:
  size_gib: 4800
  throughput_mbps_per_tib: 1000

access:
  # IAM roles. Without an admin nobody gets into the cluster.
  admins:
    - arn:aws:iam::111122223333:role/Admin

training:
  model: # 8 B parameters
    vocab_size: 128256
    dim: 4096
    num_layers: 32
    num_heads: 32
    num_kv_heads: 8
    ffn_dim: 14336
  data:
    sequence_length: 4096
    global_batch_size: 64
  optimizer:
    lr: 3.0e-4
    warmup_steps: 2000
    decay_steps: 100000
  loop:
    steps: 100000
    micro_batch_size: 1
    eval_every: 1000
    activation_checkpointing: true
    compile: true
  checkpoint:
    # Steps (10), seconds (30s), or auto: from the measured cost of a save and failures_per_day.
    persist_every: auto
    snapshot_every: 20
"""


def init(name: str, folder: Path | None = None) -> Path:
    """Write the pattern as `<folder>/<name>.yaml`. Raises InvalidInputError, or RefusedError if it exists."""
    path = _new_file(name, folder)
    write_atomically(path, PATTERN.format(name=name))
    load(path)
    return path


def clone(source: Path, new: str, settings: Sequence[str], folder: Path | None = None) -> Path:
    """Copy a file under a new name with some fields set; the copy is validated before it is written.

    Raises InvalidInputError, InvalidEnvironmentError with all problems, or RefusedError if it exists.
    """
    path = _new_file(new, folder)
    changes = [("name", new), *(_setting(text) for text in settings)]
    data = read(source)
    for field, value in changes:
        _set(data, field, value)
    parse(data, f"{path} (a copy of {source.name})")
    write_atomically(path, source.read_text())
    for field, value in changes:
        write_value(path, field, value)
    return path


def _new_file(name: str, folder: Path | None) -> Path:
    if not NAME.match(name):
        raise InvalidInputError(
            f"name: {name!r} is not a name for an environment",
            fix="at most 30 lower-case letters, digits and dashes, a letter first and no dash last",
        )
    path = (folder or FOLDER) / f"{name}.yaml"
    if path.exists():
        raise RefusedError(f"{path} exists and is left as it is", fix="another name, or remove the file")
    return path


def _setting(text: str) -> tuple[str, Any]:
    """`key=value`, the value read as YAML. Raises InvalidInputError."""
    field, equals, value = text.partition("=")
    if not equals or not field:
        raise InvalidInputError(f"--set {text!r} is not key=value", fix="such as --set nodes=4")
    try:
        return field, YAML(typ="safe", pure=True).load(value)
    except YAMLError:
        raise InvalidInputError(f"--set {field}: {value!r} is not a YAML value") from None


def _set(data: Any, field: str, value: Any) -> None:
    *parents, last = field.split(".")
    for parent in parents:
        data = data.setdefault(parent, {}) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        raise InvalidInputError(f"--set {field}: {'.'.join(parents)} holds no fields")
    data[last] = value
