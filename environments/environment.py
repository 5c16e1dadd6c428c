"""The environment file: one frozen type, every problem at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from environments.files import read
from environments.instance_types import INSTANCE_TYPES, InstanceType, Layout
from environments.problems import InvalidEnvironmentError, Problem, RefusedError, text
from environments.rules import problems_of
from environments.sections import (
    Access,
    Archive,
    Capacity,
    CapacityBlock,
    Cidr,
    FileSystem,
    Logs,
    Network,
    OnDemand,
    PolicyArn,
    Security,
    SystemNodes,
    Words,
)
from environments.shapes import from_pydantic
from trainer.config import Settings, TrainConfig

__all__ = ["Environment", "InvalidEnvironmentError", "find", "load", "names", "parse"]

FOLDER = Path(__file__).parent
Name = Annotated[
    str,
    # ECR refuses two dashes in a row, and the repository begins with this.
    text(
        r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$",
        "up to 30 lower-case letters and digits, joined by single dashes, a letter first",
        max_length=30,
    ),
]


class Environment(Settings):
    """Everything a platform team decides about an environment."""

    name: Name
    """At most 30 characters: it begins the name of everything in the account."""
    region: Annotated[str, text(r"^[a-z]{2}(-[a-z]+)+-\d$", "an AWS region such as us-east-1")]
    availability_zone: Annotated[
        str,
        text(r"^([a-z]{2}(-[a-z]+)+-\d[a-z]|from-reservation)$", "a zone such as us-east-1a, or from-reservation"),
    ]
    """Of GPU nodes, file system and control pods. `from-reservation` until `check --write` has asked EC2; then
    it never changes: another zone is another environment (`clone`)."""
    account: Annotated[str, text(r"^\d{12}$", "twelve digits, in quotes")] | None = None
    """In quotes. None: the account of whoever deploys."""
    profile: Words | None = None
    """Of the AWS configuration file."""
    instance_type: str
    interfaces: Layout = "recommended"
    """Network interfaces of GPU nodes: AWS's current layout, or the older published one."""
    nodes: Annotated[int, Field(ge=1)]
    """Nodes that train."""
    spares: Annotated[int, Field(ge=0)] = 0
    """Nodes that wait for one to fail."""
    capacity: Capacity = OnDemand()
    kubernetes_version: Annotated[str, text(r"^1\.\d\d$", "a minor version in quotes, such as '1.35'")] = "1.35"
    """In quotes. 1.36 nodes run kernel 6.18, for which Lustre support is not settled."""
    endpoint: Literal["public", "private", "cidr"] = "public"
    """Of the Kubernetes API: open to all addresses, none, or `endpoint_cidrs`; always behind IAM."""
    endpoint_cidrs: tuple[Cidr, ...] = ()
    plugins: Literal["by-stack", "by-cli"] = "by-stack"
    """Who applies device plugins and volumes: the cluster stack's Lambda, or `steadfast deploy`."""
    namespace: Annotated[
        str, text(r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", "lower-case letters, digits and dashes")
    ] = "training"
    image: (
        Annotated[
            str,
            text(r"^[^\s@:]+(:\d+/[^\s@:]+)?@sha256:[0-9a-f]{64}$", "repository@sha256:… (a digest, never a tag)"),
        ]
        | None
    ) = None
    """`repository@sha256:…`; `image push` writes it."""
    network: Network = Network()
    system_nodes: SystemNodes = SystemNodes()
    file_system: FileSystem = FileSystem()
    archive: Archive = Archive()
    access: Access = Access()
    security: Security = Security()
    logs: Logs = Logs()
    secrets: tuple[
        Annotated[str, text(r"^[A-Za-z0-9/_+=.@-]+$", "a secret's name in Secrets Manager", max_length=512)], ...
    ] = ()
    """Names in Secrets Manager, mounted as files into training pods; we never read them."""
    permissions_boundary: PolicyArn | None = None
    """Put on every role that we make."""
    owner: Words | None = None
    cost_centre: Words | None = None
    expires: date | None = None
    """When it should be gone; `inventory` names what is past it. Nothing is deleted by itself."""
    tags: dict[str, str] = Field(default_factory=dict)
    """On everything that can be tagged."""
    training: TrainConfig = TrainConfig()

    @field_validator("instance_type")
    @classmethod
    def _instance_type_known(cls, value: str) -> str:
        if value not in INSTANCE_TYPES:
            close = difflib.get_close_matches(value, INSTANCE_TYPES, n=1)
            known = f"one of {', '.join(INSTANCE_TYPES)}"
            fix = f"did you mean {close[0]!r}?" if close else "choose one"
            raise RefusedError(f"{value!r} is not in the instance table", known, fix)
        return value

    @property
    def instance(self) -> InstanceType:
        """The instance type's row in the table."""
        return INSTANCE_TYPES[self.instance_type]

    @property
    def world_size(self) -> int:
        """Ranks that train; spares wait."""
        return self.nodes * self.instance.gpus

    @property
    def second_availability_zone(self) -> str:
        """The control plane's other zone."""
        other = "b" if self.availability_zone.endswith("a") else "a"
        return self.network.second_availability_zone or f"{self.region}{other}"

    @property
    def repository(self) -> str:
        """The image repository's name in the account's registry."""
        return self.archive.repository or f"{self.name}/trainer"

    @property
    def node_group(self) -> str:
        """The GPU node group's name. Its capacity kind is in it, since changing that replaces the group."""
        return f"{self.name}-gpu-{self.capacity.kind}"

    @property
    def capacity_block(self) -> CapacityBlock | None:
        """The Capacity Block, if that is what the environment runs on."""
        return self.capacity if isinstance(self.capacity, CapacityBlock) else None

    @property
    def all_tags(self) -> dict[str, str]:
        """The file's tags and what `inventory` finds an environment by."""
        ours = {"steadfast:environment": self.name, "steadfast:owner": self.owner}
        ours |= {"steadfast:cost-centre": self.cost_centre}
        ours |= {"steadfast:expires": self.expires.isoformat() if self.expires else None}
        return {**self.tags, **{key: value for key, value in ours.items() if value}}


def names() -> list[str]:
    """Environments under environments/."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(name_or_path: str | Path) -> Path:
    """The file of a named environment, or the path itself. Raises InvalidEnvironmentError listing the names."""
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        return path
    named = FOLDER / f"{name_or_path}.yaml"
    if path.name == str(name_or_path) and named.is_file():
        return named
    known = f"names: {', '.join(names()) or 'none yet'}, or the path of a .yaml file"
    raise InvalidEnvironmentError(
        str(name_or_path), [Problem("environment", "there is no such environment", known, "`steadfast init NAME`")]
    )


def load(path: Path) -> Environment:
    """Read and validate an environment file. Raises InvalidEnvironmentError with all problems."""
    return parse(read(path), str(path))


def parse(data: Any, source: str) -> Environment:
    """Validate what a file holds: its shape, then every rule. Raises InvalidEnvironmentError with all problems."""
    try:
        environment = Environment.model_validate(data)
    except ValidationError as error:
        shape = from_pydantic(error, Environment)
        raise InvalidEnvironmentError(source, [*shape, *_rules_of_the_rest(data, error)]) from None
    problems = problems_of(environment)
    if problems:
        raise InvalidEnvironmentError(source, problems)
    return environment


_STAND_INS: dict[str, Any] = {"name": "unnamed", "nodes": 1, "region": "us-east-1", "instance_type": "p5.48xlarge"}
_MISLED = {
    "account": {"permissions_boundary"},
    "archive": {"name", "file_system"},
    "availability_zone": {"network"},
    "capacity": {"availability_zone", "nodes"},
    "endpoint": {"endpoint_cidrs"},
    "file_system": {"training", "network"},
    "instance_type": {"training", "network", "access", "capacity"},
    "interfaces": {"network"},
    "network": {"account", "image"},
    "nodes": {"training", "network", "access", "capacity"},
    "plugins": {"network"},
    "region": {"availability_zone", "network", "name", "image", "access", "permissions_boundary"},
    "secrets": {"network"},
    "spares": {"training", "network", "access", "capacity", "nodes"},
    "system_nodes": {"network"},
}
"""Where rules would judge by the default of a misshapen field."""


def _rules_of_the_rest(data: Any, error: ValidationError) -> list[Problem]:
    """Problems by rule in what is left when misshapen fields take their defaults, where that is possible."""
    places = [item["loc"] for item in error.errors() if item["loc"]]
    bad = {str(place[0]) for place in places}
    rest = {key: value for key, value in data.items() if key not in bad}
    rest |= {key: value for key, value in _STAND_INS.items() if key in bad}
    if "availability_zone" in bad:
        rest["availability_zone"] = f"{rest['region']}a"
    silent = bad.union(*(_MISLED.get(field, set()) for field in bad))
    if "tags" in bad and isinstance(data["tags"], Mapping):
        wrong = {place[1] for place in places if place[0] == "tags"}
        rest["tags"] = {key: value for key, value in data["tags"].items() if key not in wrong}
        silent -= {"tags"}
    try:
        environment = Environment.model_validate(rest)
    except ValidationError:
        return []
    return [problem for problem in problems_of(environment) if problem.field.split(".")[0] not in silent]
