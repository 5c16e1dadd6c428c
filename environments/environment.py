"""The environment file: one frozen type, every problem at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from environments.instance_types import INSTANCE_TYPES, InstanceType
from trainer.config import Settings, TrainConfig

Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,28}[a-z0-9])?$")]


class FileSystem(Settings):
    """FSx for Lustre, PERSISTENT_2."""

    size_gib: int = 4800
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = 1000
    efa: bool = False


class Archive(Settings):
    """The bucket that outlives the environment."""

    bucket: str | None = None
    """None: `<name>-archive-<account>-<region>`."""
    prefix: str = "steadfast"


class Access(Settings):
    """Who gets in, by IAM role."""

    admins: tuple[str, ...] = ()
    researchers: tuple[str, ...] = ()


class Environment(Settings):
    """Everything a platform team decides about an environment."""

    name: Name
    region: str
    availability_zone: str
    account: str | None = None
    instance_type: str
    nodes: Annotated[int, Field(ge=1)]
    spares: Annotated[int, Field(ge=0)] = 0
    kubernetes_version: str = "1.35"
    endpoint: Literal["public", "private", "cidr"] = "public"
    namespace: str = "training"
    file_system: FileSystem = FileSystem()
    archive: Archive = Archive()
    access: Access = Access()
    image: str | None = None
    """`repository@sha256:…`; `image push` writes it."""
    training: TrainConfig = TrainConfig()

    @model_validator(mode="after")
    def _instance_type_known(self) -> Environment:
        if self.instance_type not in INSTANCE_TYPES:
            raise ValueError(
                f"instance_type {self.instance_type!r} is not known; known: {', '.join(sorted(INSTANCE_TYPES))}"
            )
        return self

    @property
    def instance(self) -> InstanceType:
        """The instance type's row in the table."""
        return INSTANCE_TYPES[self.instance_type]

    @property
    def world_size(self) -> int:
        """Ranks that train; spares wait."""
        return self.nodes * self.instance.gpus


class InvalidEnvironmentError(Exception):
    """Carries every problem of a file, each with its fix."""

    def __init__(self, source: str, problems: list[str]) -> None:
        super().__init__(f"{source}: {len(problems)} problem(s)\n" + "\n".join(f"  {p}" for p in problems))
        self.source = source
        self.problems = problems


def load(path: Path) -> Environment:
    """Read and validate an environment file. Raises InvalidEnvironmentError with all problems."""
    from pydantic import ValidationError
    from ruamel.yaml import YAML

    try:
        return Environment.model_validate(YAML(typ="safe").load(path))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise InvalidEnvironmentError(str(path), problems) from None
