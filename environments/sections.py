"""The sections of an environment file. Each field's docstring is its help in editors (environment.schema.json)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, PositiveInt

from environments.problems import text
from trainer.config import Settings

ReservationId = Annotated[str, text(r"^cr-[0-9a-f]{8,17}$", "a reservation's id: cr- and hexadecimal digits")]
RoleArn = Annotated[
    str, text(r"^arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+$", "an IAM role's ARN, not a user's or a session's")
]
PolicyArn = Annotated[str, text(r"^arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]+$", "an IAM policy's ARN")]
Words = Annotated[str, text(r"\S", "some text, or no such line at all")]
BucketName = Annotated[
    str, text(r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", "3 to 63 lower-case letters, digits and dashes")
]
Cidr = Annotated[str, text(r"^\d{1,3}(\.\d{1,3}){3}/\d{1,2}$", "an IPv4 network such as 10.0.0.0/16")]
Events = Literal["NEW", "CHANGED", "DELETED"]


class OnDemand(Settings):
    """Whatever EC2 has when the nodes are scaled up; our own cluster placement group."""

    kind: Literal["on-demand"] = "on-demand"


class Reservation(Settings):
    """An On-Demand Capacity Reservation."""

    kind: Literal["odcr"]
    reservation: ReservationId
    placement_group: Words | None = None
    """The placement group that the reservation was made in. One without cannot be moved into one later."""


class CapacityBlock(Settings):
    """A Capacity Block for ML: bought for a time, in an UltraCluster, so without a placement group."""

    kind: Literal["capacity-block"]
    reservation: ReservationId
    start: AwareDatetime
    """When the block begins, with its time zone: `2026-12-01T11:30:00Z`."""
    end: AwareDatetime
    """When the block ends. Runs stop by themselves 60 minutes before."""


Capacity = Annotated[OnDemand | Reservation | CapacityBlock, Field(discriminator="kind")]


class Network(Settings):
    """The VPC, and the way out of it."""

    cidr: Cidr = "10.0.0.0/16"
    second_availability_zone: str | None = None
    """EKS wants two zones for its control plane. None: zone a, or b if the environment is in a."""
    egress: Literal["nat", "endpoints"] = "nat"
    """nat: a NAT gateway. endpoints: no way out but VPC endpoints; then every image must be in our registry."""


class SystemNodes(Settings):
    """Nodes without GPUs, in the environment's zone: add-ons, and the pods that hold the rendezvous store."""

    instance_type: Annotated[str, text(r"^[a-z0-9-]+\.[a-z0-9-]+$", "an EC2 instance type")] = "m7i.xlarge"
    nodes: Annotated[int, Field(ge=2, le=20)] = 2
    """Two, so that add-ons with two replicas survive one node."""


_STEP = r"[\w-][\w.-]*"
"""Of a path: neither empty nor . nor .., which S3 keys and paths read differently."""


class Association(Settings):
    """A directory of the file system that FSx keeps in step with a prefix of a bucket."""

    path: Annotated[str, text(rf"^/({_STEP}(/{_STEP})*)?$", "/, or an absolute path such as /data/text")]
    """On the file system: `/data`."""
    bucket: BucketName | None = None
    """None: the environment's archive."""
    prefix: Annotated[str, text(rf"^({_STEP}(/{_STEP})*)?$", "names joined by single slashes, or nothing")]
    """In the bucket, below the archive's prefix if it is the archive."""
    imports: tuple[Events, ...] = ()
    """Changes in the bucket that appear on the file system."""
    exports: tuple[Events, ...] = ()
    """Changes on the file system that go to the bucket."""


DATA_IN = Association(path="/data", prefix="input", imports=("NEW", "CHANGED", "DELETED"))
RUNS_OUT = Association(path="/runs", prefix="runs", exports=("NEW", "CHANGED"))


class FileSystem(Settings):
    """FSx for Lustre, PERSISTENT_2, SSD, in the GPU nodes' zone."""

    size_gib: PositiveInt = 4800
    """1200, or a multiple of 2400; with EFA a multiple of what one of its servers holds."""
    throughput_mbps_per_tib: Literal[125, 250, 500, 1000] = 1000
    efa: bool = False
    """Lustre over EFA. Cannot be changed later."""
    metadata_iops: int | Literal["automatic"] = "automatic"
    compression: Literal["NONE", "LZ4"] = "NONE"
    """LZ4 helps text; weights and moments do not compress."""
    associations: Annotated[tuple[Association, ...], Field(max_length=8)] = (DATA_IN, RUNS_OUT)


class Archive(Settings):
    """The bucket and the registry that outlive the environment."""

    bucket: BucketName | None = None
    """None: `<name>-archive-<account>-<region>`."""
    prefix: Annotated[str, text(r"^[\w-]+(/[\w-]+)*$", "words joined by single slashes")] = "steadfast"
    adopt: bool = False
    """The bucket exists, from an earlier life or made by others: use it and leave it as it is."""
    repository: (
        Annotated[
            str,
            text(
                r"^[a-z0-9]+([._/-][a-z0-9]+)*$",
                "lower-case words joined by one of . _ / -",
                min_length=2,
                max_length=256,
            ),
        ]
        | None
    ) = None
    """The image registry's repository. None: `<name>/trainer`."""
    adopt_repository: bool = False
    codebuild: bool = False
    """A CodeBuild project that builds the image where there is no container engine."""
    noncurrent_days: Annotated[int, Field(ge=1)] = 30
    """Days that an overwritten or deleted object can still be brought back."""


class Quota(Settings):
    """What researchers may have in the run namespace at a time."""

    jobs: Annotated[int, Field(ge=2)] = 8
    """A run is two Jobs: the training and its control pod."""
    gpus: Annotated[int, Field(ge=1)] | None = None
    """None: all of the environment's, spares included."""


class Access(Settings):
    """Who gets in, by IAM role. The creator of the cluster is CloudFormation, so nobody gets in otherwise."""

    admins: tuple[RoleArn, ...] = ()
    """Cluster administrators. At least one."""
    researchers: tuple[RoleArn, ...] = ()
    """May submit and watch runs in the run namespace, and nothing else."""
    quota: Quota = Quota()


class Security(Settings):
    """How the training container runs."""

    root: bool = False
    """Root with IPC_LOCK. Off: non-root, with memlock raised on the node (kubernetes#56374)."""


class Logs(Settings):
    """CloudWatch log groups of ours."""

    retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 731] = 30
