"""What the API server fills in when an object is created, from the API reference's stated defaults."""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Iterable

from ops.local.kubernetes.objects import Object

UNLIMITED = 2147483647
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
CONTROLLER_UID_LABEL = "batch.kubernetes.io/controller-uid"


def default_pod_spec(spec: Object) -> None:
    """Pod defaults, in a Pod or in a template."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
        _default_container(container)


def _default_container(container: Object) -> None:
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.setdefault("resources", {})
    for name, quantity in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, quantity)


def default_job(job: Object) -> None:
    """Job defaults. Called before validation, so a template may be missing."""
    spec = job["spec"]
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    if spec.get("backoffLimit") is None:
        spec["backoffLimit"] = 6 if spec.get("backoffLimitPerIndex") is None else UNLIMITED
    if spec.get("podReplacementPolicy") is None:
        spec["podReplacementPolicy"] = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    for rule in (spec.get("podFailurePolicy") or {}).get("rules", []):
        for pattern in rule.get("onPodConditions") or []:
            pattern.setdefault("status", "True")
    if isinstance(spec.get("template", {}).get("spec"), dict):
        default_pod_spec(spec["template"]["spec"])


def label_job(job: Object) -> None:
    """The generated selector and the labels of the pods. The uid is decided here, before the store sees it."""
    spec, name = job["spec"], job["metadata"]["name"]
    uid = job["metadata"].setdefault("uid", str(uuid.uuid4()))
    if spec.get("manualSelector"):
        return
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    labels |= {CONTROLLER_UID_LABEL: uid, "controller-uid": uid, JOB_NAME_LABEL: name, "job-name": name}
    spec["selector"] = {"matchLabels": {CONTROLLER_UID_LABEL: uid}}


def default_service(service: Object) -> None:
    """Service defaults, but for the address."""
    spec = service["spec"]
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port["port"])


def allocate_cluster_ip(service: Object, addresses: Iterable[str], taken: set[str]) -> None:
    """Gives a ClusterIP Service the first free address; a headless one keeps `None`."""
    spec = service["spec"]
    if spec.get("type") != "ClusterIP":
        return
    if not spec.get("clusterIP"):
        spec["clusterIP"] = next(a for a in addresses if a not in taken)
    spec["clusterIPs"] = [spec["clusterIP"]]


def service_addresses(network: str) -> Iterable[str]:
    """Every address of the Service range, in order."""
    return (str(a) for a in ipaddress.ip_network(network).hosts())
