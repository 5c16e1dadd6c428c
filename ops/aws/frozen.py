"""What a deployment would change in what stands: what may not move at all, and what may not under a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments.rules.place import ZONE_UNKNOWN
from ops.aws.access import Aws
from ops.aws.stacks import stack, stack_name

Resources = dict[str, Any]
_NEVER_STOOD = ("REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE", "CREATE_FAILED")


def deployed(aws: Aws, kind: str) -> Resources:
    """The resources of a stack's template as CloudFormation has it; none if nothing of the stack stands."""
    found = stack(aws, kind)
    if found is None or found.status in _NEVER_STOOD:
        return {}
    body = aws.client("cloudformation").get_template(StackName=found.name)["TemplateBody"]
    template = json.loads(body) if isinstance(body, str) else body
    resources: Resources = template.get("Resources", {})
    return resources


def moved(aws: Aws) -> Iterator[str]:
    """What the file says otherwise than what is deployed and cannot be changed: each as a sentence."""
    environment, network, storage = aws.environment, deployed(aws, "network"), deployed(aws, "storage")
    zones = [environment.availability_zone, environment.second_availability_zone]
    stand = list(dict.fromkeys(subnet["AvailabilityZone"] for subnet in _of(network, "AWS::EC2::Subnet")))
    if stand and stand != zones and ZONE_UNKNOWN not in zones:
        yield f"availability_zone: subnets stand in {' and '.join(stand)}, the file says {' and '.join(zones)}"
    for vpc in _of(network, "AWS::EC2::VPC"):
        if vpc["CidrBlock"] != environment.network.cidr:
            yield f"network.cidr: the VPC has {vpc['CidrBlock']}, the file says {environment.network.cidr}"
    for found in _of(storage, "AWS::FSx::FileSystem"):
        yield from _file_system_moved(aws, found)


def _file_system_moved(aws: Aws, found: dict[str, Any]) -> Iterator[str]:
    section = aws.environment.file_system
    efa = bool(found["LustreConfiguration"].get("EfaEnabled"))
    if efa != section.efa:
        yield f"file_system.efa: the file system was made with {str(efa).lower()}, and FSx cannot switch it"
    if found["StorageCapacity"] > section.size_gib:
        yield f"file_system.size_gib: {found['StorageCapacity']} GiB are there, and FSx cannot shrink them"


def _of(resources: Resources, kind: str) -> Iterator[dict[str, Any]]:
    return (resource["Properties"] for resource in resources.values() if resource["Type"] == kind)


def replaces_nodes(aws: Aws, assembly: Path) -> bool:
    """Whether a synthesized capacity stack differs from the deployed one: any difference may replace its nodes."""
    path = assembly / f"{stack_name(aws, 'capacity')}.template.json"
    synthesized: Resources = json.loads(path.read_text(encoding="utf-8"))["Resources"]
    stands = deployed(aws, "capacity")
    return bool(stands) and _compared(stands) != _compared(synthesized)


def _compared(resources: Resources) -> str:
    """Without CDK's own notes."""
    kept = {
        name: {key: value for key, value in resource.items() if key != "Metadata"}
        for name, resource in resources.items()
        if resource["Type"] != "AWS::CDK::Metadata"
    }
    return json.dumps(kept, sort_keys=True)
