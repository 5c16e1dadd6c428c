"""Everything that would fail later, asked before money is spent. One function per question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from botocore.exceptions import BotoCoreError, ClientError
from rich.console import Console
from rich.markup import escape

from environments.rules.place import ZONE_UNKNOWN, ZONES_WITHOUT_EKS
from environments.sections import CapacityBlock, OnDemand, Reservation
from environments.versions import addon_versions
from k8s.resources import DoesNotFitError, fitting_pod_memory
from ops.aws.access import Aws, error_code, error_message
from ops.aws.frozen import moved
from ops.aws.stacks import bootstrapped, stack

State = Literal["ok", "warning", "failed"]
P_INSTANCES_QUOTA = "L-417A185B"
"""Running On-Demand P instances, in vCPUs."""
G_INSTANCES_QUOTA = "L-DB2E81BA"


@dataclass(frozen=True)
class Finding:
    """One answer."""

    question: str
    state: State
    answer: str
    fix: str = ""


Question = Callable[[Aws], Iterator[Finding]]


def account_is_reachable(aws: Aws) -> Iterator[Finding]:
    """Credentials work."""
    identity = aws.client("sts").get_caller_identity()
    yield Finding("credentials", "ok", f"{identity['Arn']} in account {identity['Account']}")


def cdk_is_bootstrapped(aws: Aws) -> Iterator[Finding]:
    """CDK's own stack."""
    if bootstrapped(aws):
        yield Finding("CDK bootstrap", "ok", "CDKToolkit is there")
    else:
        yield Finding("CDK bootstrap", "warning", "no CDKToolkit stack", "`steadfast deploy` makes it first")


def type_is_offered(aws: Aws) -> Iterator[Finding]:
    """The zone has the instance type."""
    environment = aws.environment
    if environment.availability_zone == ZONE_UNKNOWN:
        return
    offers = aws.client("ec2").describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [environment.instance_type]}],
    )["InstanceTypeOfferings"]
    zones = sorted(offer["Location"] for offer in offers)
    if environment.availability_zone in zones:
        yield Finding("instance type", "ok", f"{environment.availability_zone} offers {environment.instance_type}")
    else:
        where = ", ".join(zones) or f"no zone of {environment.region}"
        answer = f"{environment.availability_zone} does not offer {environment.instance_type}; {where} does"
        yield Finding("instance type", "failed", answer, "another availability_zone, in a new environment")


def zones_take_a_control_plane(aws: Aws) -> Iterator[Finding]:
    """Both zones exist, and EKS has control planes there. Names differ by account, so only EC2 knows."""
    environment = aws.environment
    if environment.availability_zone == ZONE_UNKNOWN:
        return
    wanted = [environment.availability_zone, environment.second_availability_zone]
    zones = aws.client("ec2").describe_availability_zones()["AvailabilityZones"]
    ids = {zone["ZoneName"]: zone["ZoneId"] for zone in zones}
    fix = "another availability_zone or network.second_availability_zone, in a new environment"
    bad = False
    for name in wanted:
        if name not in ids:
            bad, answer = True, f"there is no {name}; {environment.region} has {', '.join(sorted(ids))}"
            yield Finding("zones", "failed", answer, fix)
        elif ids[name] in ZONES_WITHOUT_EKS:
            bad, answer = True, f"{name} is {ids[name]}, where EKS has no control planes"
            yield Finding("zones", "failed", answer, fix)
    if not bad:
        yield Finding("zones", "ok", f"{' and '.join(wanted)} take a control plane")


def addons_are_offered(aws: Aws) -> Iterator[Finding]:
    """The pinned versions are still among those that EKS has for the Kubernetes version."""
    environment = aws.environment
    pinned, bad = addon_versions(environment.kubernetes_version), False
    if not environment.secrets:
        del pinned["aws-secrets-store-csi-driver-provider"]
    for name, version in pinned.items():
        found = aws.client("eks").describe_addon_versions(
            addonName=name, kubernetesVersion=environment.kubernetes_version
        )["addons"]
        offered = [item["addonVersion"] for addon in found for item in addon["addonVersions"]]
        if version not in offered:
            bad, newest = True, offered[0] if offered else "none"
            answer = f"EKS does not offer {name} {version} here; {newest} is its newest"
            yield Finding("add-ons", "failed", answer, "change it in environments/versions.py")
    if not bad:
        yield Finding("add-ons", "ok", f"EKS offers all {len(pinned)} in the pinned versions")


def pods_fit_the_hosts(aws: Aws) -> Iterator[Finding]:
    """Host memory of a training pod, which `submit` would refuse after nodes are paid for."""
    try:
        memory = fitting_pod_memory(aws.environment)
    except DoesNotFitError as error:
        what, _, fix = str(error).partition("; ")
        yield Finding("host memory", "failed", what, fix)
        return
    yield Finding("host memory", "ok", f"a training pod takes {memory.limit_bytes // 2**30} GiB")


def dates_are_ahead(aws: Aws) -> Iterator[Finding]:
    """A block that has ended trains nothing; an environment past its date should go."""
    environment, now = aws.environment, datetime.now(UTC)
    block = environment.capacity_block
    if block and block.end <= now:
        answer = f"the Capacity Block ended at {block.end:%Y-%m-%d %H:%M %Z}"
        yield Finding("dates", "failed", answer, "another block under capacity, in the same zone")
    if environment.expires and environment.expires < now.date():
        answer = f"the environment expired on {environment.expires}"
        yield Finding("dates", "warning", answer, "`steadfast destroy`, or a later `expires`")


def quota_suffices(aws: Aws) -> Iterator[Finding]:
    """vCPUs of on-demand instances; reservations and blocks do not count against it."""
    environment = aws.environment
    if not isinstance(environment.capacity, OnDemand):
        return
    code = P_INSTANCES_QUOTA if environment.instance_type.startswith("p") else G_INSTANCES_QUOTA
    needed = (environment.nodes + environment.spares) * environment.instance.vcpus
    quota = aws.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]
    if quota["Value"] >= needed:
        yield Finding("quota", "ok", f"{quota['Value']:.0f} vCPUs, {needed} needed")
    else:
        answer = f"{quota['Value']:.0f} vCPUs of on-demand instances, and {needed} are needed"
        yield Finding("quota", "failed", answer, f"ask for more: Service Quotas, EC2, {code}")


def reservation(aws: Aws) -> dict[str, Any] | None:
    """The reservation that the environment runs on; None on demand."""
    capacity = aws.environment.capacity
    if not isinstance(capacity, Reservation | CapacityBlock):
        return None
    found: dict[str, Any] = aws.client("ec2").describe_capacity_reservations(
        CapacityReservationIds=[capacity.reservation]
    )["CapacityReservations"][0]
    return found


def reservation_fits(aws: Aws) -> Iterator[Finding]:
    """Type, zone, size and time of the reservation."""
    found, environment = reservation(aws), aws.environment
    if found is None:
        return
    name, needed = found["CapacityReservationId"], environment.nodes + environment.spares
    if found["InstanceType"] != environment.instance_type:
        answer = f"{name} is of {found['InstanceType']}, the file says {environment.instance_type}"
        yield Finding("reservation", "failed", answer, "correct one of them")
    if environment.availability_zone not in (found["AvailabilityZone"], ZONE_UNKNOWN):
        answer = f"{name} is in {found['AvailabilityZone']}, the environment in {environment.availability_zone}"
        yield Finding("reservation", "failed", answer, "another zone is another environment: `steadfast clone`")
    yield from _times_differ(environment.capacity_block, found)
    if found["TotalInstanceCount"] < needed:
        answer = f"{name} holds {found['TotalInstanceCount']} instances, nodes and spares are {needed}"
        yield Finding("reservation", "failed", answer, "fewer nodes")
    if found["State"] not in ("active", "scheduled", "payment-pending"):
        yield Finding("reservation", "failed", f"{name} is {found['State']}", "another reservation")
    elif found.get("EndDate") and found["EndDate"] <= datetime.now(UTC):
        yield Finding("reservation", "failed", f"{name} ended at {found['EndDate']:%Y-%m-%d %H:%M}", "another one")
    else:
        yield Finding("reservation", "ok", f"{name}: {found['State']} in {found['AvailabilityZone']}")


def _times_differ(block: CapacityBlock | None, found: dict[str, Any]) -> Iterator[Finding]:
    """Runs stop by the file's end: a later one than the reservation's is a run that is cut off."""
    for name, key in (("start", "StartDate"), ("end", "EndDate")):
        theirs = found.get(key)
        ours = getattr(block, name) if block else None
        if ours and theirs and abs(ours - theirs) >= timedelta(minutes=1):
            answer = f"{found['CapacityReservationId']} has its {name} at {theirs:%Y-%m-%dT%H:%MZ}"
            yield Finding("reservation", "failed", f"{answer}, the file at {ours:%Y-%m-%dT%H:%M%Z}", "correct it")


def zone_is_known(aws: Aws) -> Iterator[Finding]:
    """`from-reservation` is filled in by --write."""
    if aws.environment.availability_zone == ZONE_UNKNOWN:
        yield Finding(
            "zone", "failed", "availability_zone is not known yet", "`steadfast check ENV --write` asks EC2"
        )


def bucket_is_ours(aws: Aws) -> Iterator[Finding]:
    """A new bucket's name is free, an adopted one is there."""
    environment, name = aws.environment, aws.bucket
    try:
        aws.client("s3").head_bucket(Bucket=name)
    except ClientError as error:
        code = error_code(error)
        if code in ("404", "NoSuchBucket"):
            if environment.archive.adopt:
                yield Finding("archive", "failed", f"bucket {name} is not there", "archive.adopt: false makes it")
            else:
                yield Finding("archive", "ok", f"bucket {name} will be made")
        else:
            answer = f"bucket {name}: {error_message(error)}"
            yield Finding("archive", "failed", answer, "somebody else's bucket: another archive.bucket")
        return
    if environment.archive.adopt or stack(aws, "archive"):
        yield Finding("archive", "ok", f"bucket {name} is there")
    else:
        answer = f"bucket {name} is there and belongs to no archive stack, so the stack could not make it"
        yield Finding("archive", "failed", answer, "archive.adopt: true uses it as it is")


def image_is_there(aws: Aws) -> Iterator[Finding]:
    """The image of the file can be pulled."""
    image = aws.environment.image
    if image is None:
        yield Finding("image", "warning", "`image` is not set", "`steadfast image push` sets it, after deploy")
        return
    repository, _, digest = image.partition("@")
    if ".dkr.ecr." not in repository:
        yield Finding("image", "warning", f"{repository} is not in this account's registry", "nodes must reach it")
        return
    try:
        aws.client("ecr").describe_images(
            repositoryName=repository.partition("/")[2], imageIds=[{"imageDigest": digest}]
        )
    except ClientError as error:
        yield Finding("image", "failed", f"{image}: {error_message(error)}", "`steadfast image push`")
        return
    yield Finding("image", "ok", "is in the registry")


def deployed_stays_where_it_is(aws: Aws) -> Iterator[Finding]:
    """Zones, addresses and what else cannot change under an environment."""
    for change in moved(aws):
        yield Finding(
            "what is deployed", "failed", change, "put it back, or another environment: `steadfast clone`"
        )


def endpoint_costs_time(aws: Aws) -> Iterator[Finding]:
    """What `cidr` and `private` bring with them."""
    environment = aws.environment
    if environment.endpoint != "public" and environment.plugins == "by-stack":
        answer = f"endpoint {environment.endpoint}: the stack's functions are in the VPC"
        yield Finding("endpoint", "warning", answer, "destroy waits about 18 minutes for their interfaces")


QUESTIONS: tuple[Question, ...] = (
    account_is_reachable,
    cdk_is_bootstrapped,
    type_is_offered,
    zones_take_a_control_plane,
    quota_suffices,
    pods_fit_the_hosts,
    addons_are_offered,
    zone_is_known,
    reservation_fits,
    dates_are_ahead,
    deployed_stays_where_it_is,
    bucket_is_ours,
    image_is_there,
    endpoint_costs_time,
)


def ask(aws: Aws) -> list[Finding]:
    """Every answer. What cannot be asked is a finding, except credentials: without them nothing can."""
    findings = list(account_is_reachable(aws))
    for question in QUESTIONS[1:]:
        try:
            findings += question(aws)
        except (ClientError, BotoCoreError) as error:
            said = error_message(error) if isinstance(error, ClientError) else str(error)
            findings.append(Finding(question.__name__.replace("_", " "), "warning", f"could not be asked: {said}"))
    return findings


def failed(findings: list[Finding]) -> list[Finding]:
    """Those that would make a deployment fail."""
    return [finding for finding in findings if finding.state == "failed"]


def show(console: Console, findings: list[Finding]) -> None:
    """One line each, and its fix."""
    marks = {"ok": "[green]ok     [/]", "warning": "[yellow]warning[/]", "failed": "[red]failed [/]"}
    for finding in findings:
        console.print(f"{marks[finding.state]} {finding.question}: {escape(finding.answer)}")
        if finding.fix:
            console.print(f"        {escape(finding.fix)}")


def as_dicts(findings: list[Finding]) -> list[dict[str, str]]:
    """For --json."""
    return [asdict(finding) for finding in findings]
