"""Template rules of the file system: what FSx refuses after minutes, or takes and hangs on later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from environments.rules.storage import LUSTRE_PORTS
from infra.templates import Address, Templates

_WITH_ASSOCIATIONS_REFUSED = ("ImportPath", "ExportPath", "AutoImportPolicy", "ImportedFileChunkSize")
_SG_RULES = ("AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress")


def file_system_is_where_the_gpus_are(templates: Templates) -> Iterator[str]:
    """A mount from another subnet is slow, costs traffic, or times out (fsx-csi#120, #213)."""
    gpu = [
        templates.target(address[0], subnet)
        for address, group in templates.of_type("AWS::EKS::Nodegroup")
        for subnet in group["Properties"]["Subnets"]
    ]
    for address, file_system in templates.of_type("AWS::FSx::FileSystem"):
        own = [templates.target(address[0], subnet) for subnet in file_system["Properties"]["SubnetIds"]]
        if set(own) != set(gpu):
            yield f"{address[0]}/{address[1]}: not in the nodes' subnet (fsx-csi#120)"


def rules_come_before_the_file_system(templates: Templates) -> Iterator[str]:
    """FSx checks its group's rules when it is created, and has lost that race by a second (fsx-csi#32). The same
    order backwards takes the file system away before its group, which else has dependents (aws-cdk#31521)."""
    for address, file_system in templates.of_type("AWS::FSx::FileSystem"):
        depends = set(file_system.get("DependsOn", []))
        for kind in _SG_RULES:
            for (stack, rule), _ in templates.of_type(kind):
                if stack == address[0] and rule not in depends:
                    yield f"{stack}/{address[1]}: may be created before {rule} (fsx-csi#32)"


def lnet_ports_are_open(templates: Templates) -> Iterator[str]:
    """988 and 1018 to 1023 from itself and its clients; everything if it speaks EFA (parallelcluster#6181)."""
    for address, file_system in templates.of_type("AWS::FSx::FileSystem"):
        properties = file_system["Properties"]
        efa = bool(properties["LustreConfiguration"].get("EfaEnabled"))
        groups = {templates.target(address[0], group) for group in properties["SecurityGroupIds"]}
        for own in groups:
            for direction in ("Ingress", "Egress") if efa else ("Ingress",):
                peers = _peers(templates, own, direction, efa)
                if own not in peers or len(peers) < 2:
                    wanted = "all traffic" if efa else "TCP 988 and 1018-1023"
                    yield (
                        f"{address[0]}/{address[1]}: {direction.lower()} lacks {wanted} "
                        "for itself and its clients (parallelcluster#6181)"
                    )


def _peers(templates: Templates, group: Address | None, direction: str, efa: bool) -> set[Address | None]:
    """Groups to which every needed port is open."""
    peer = "SourceSecurityGroupId" if direction == "Ingress" else "DestinationSecurityGroupId"
    opened: dict[Address | None, set[tuple[int, int]]] = {}
    for (stack, _), rule in templates.of_type(f"AWS::EC2::SecurityGroup{direction}"):
        properties = rule["Properties"]
        if templates.target(stack, properties["GroupId"]) == group:
            opened.setdefault(templates.target(stack, properties.get(peer)), set()).add(_ports(properties))
    needed = {(-1, -1)} if efa else set(LUSTRE_PORTS)
    return {peer for peer, ports in opened.items() if needed <= ports or (-1, -1) in ports}


def _ports(properties: dict[str, Any]) -> tuple[int, int]:
    if str(properties["IpProtocol"]) == "-1":
        return (-1, -1)
    return (properties["FromPort"], properties["ToPort"])


def associations_rule_out_the_older_link(templates: Templates) -> Iterator[str]:
    """The older import and export paths, and backups, cannot stand beside associations (Lustre guide)."""
    linked = any(True for _ in templates.of_type("AWS::FSx::DataRepositoryAssociation"))
    for address, file_system in templates.of_type("AWS::FSx::FileSystem"):
        configuration = file_system["Properties"]["LustreConfiguration"]
        for name in _WITH_ASSOCIATIONS_REFUSED:
            if linked and name in configuration:
                yield f"{address[0]}/{address[1]}: {name} beside associations, which FSx refuses"
        if linked and configuration.get("AutomaticBackupRetentionDays"):
            yield f"{address[0]}/{address[1]}: backups of a file system that is linked to S3, which FSx refuses"


LUSTRE_RULES: tuple[Callable[[Templates], Iterator[str]], ...] = (
    file_system_is_where_the_gpus_are,
    rules_come_before_the_file_system,
    lnet_ports_are_open,
    associations_rule_out_the_older_link,
)
