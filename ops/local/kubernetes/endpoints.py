"""Which addresses stand behind a Service, and the names that resolve inside the cluster.

https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/
"""

from __future__ import annotations

from ops.local.kubernetes.events import record
from ops.local.kubernetes.kinds import ENDPOINTS, POD, SERVICE
from ops.local.kubernetes.objects import (
    Object,
    condition_is,
    is_finished_pod,
    is_terminating,
    labels_of,
    matches_labels,
    name_of,
    namespace_of,
    owner_reference,
    uid_of,
)
from ops.local.kubernetes.store import Ref, Store, ref_of

CLUSTER_DOMAIN = "cluster.local"


def backends(store: Store, service: Object) -> list[Object]:
    """Pods behind a Service, the newest first: unready ones only with publishNotReadyAddresses."""
    selector = service["spec"].get("selector")
    if not selector:
        return []
    unready_too = service["spec"].get("publishNotReadyAddresses", False)
    found = []
    for pod in store.select(POD, namespace_of(service)):
        if not matches_labels(selector, labels_of(pod)) or is_finished_pod(pod):
            continue
        ready = condition_is(pod, "Ready") and not is_terminating(pod)
        if pod.get("status", {}).get("podIP") and (unready_too or ready):
            found.append(pod)
    return sorted(found, key=lambda p: (not is_terminating(p), p["metadata"]["creationTimestamp"]), reverse=True)


def names_of_pod(store: Store, pod: Object) -> list[str]:
    """The DNS names a headless Service gives to a pod."""
    hostname, subdomain = pod["spec"].get("hostname"), pod["spec"].get("subdomain")
    namespace = namespace_of(pod)
    if not hostname or not subdomain or store.peek(Ref(SERVICE, namespace, subdomain)) is None:
        return []
    short = f"{hostname}.{subdomain}"
    return [f"{short}.{namespace}.svc.{CLUSTER_DOMAIN}", f"{short}.{namespace}.svc", f"{short}.{namespace}", short]


def names_of_service(service: Object) -> list[str]:
    """The DNS names of a Service, the full one first."""
    name, namespace = name_of(service), namespace_of(service)
    return [f"{name}.{namespace}.svc.{CLUSTER_DOMAIN}", f"{name}.{namespace}.svc", f"{name}.{namespace}", name]


def step(store: Store) -> None:
    """Writes an Endpoints object for every Service with a selector, but for those on their way out.

    Else the garbage collector would take away what is written here again, for ever.
    """
    for service in store.select(SERVICE):
        if service["spec"].get("selector") and not is_terminating(service):
            _write(store, service)


def _write(store: Store, service: Object) -> None:
    subsets = _subsets(backends(store, service), service)
    ref = Ref(ENDPOINTS, namespace_of(service), name_of(service))
    present = store.peek(ref)
    if present is None:
        _warn_of_mapped_ports(store, service)
        store.create(
            {
                "apiVersion": "v1",
                "kind": "Endpoints",
                "metadata": {
                    "name": name_of(service),
                    "namespace": namespace_of(service),
                    "ownerReferences": [owner_reference(service)],
                },
                "subsets": subsets,
            }
        )
    elif present.get("subsets") != subsets:
        store.modify(ref_of(present), lambda e: e.update(subsets=subsets))


def _warn_of_mapped_ports(store: Store, service: Object) -> None:
    mapped = [p for p in service["spec"].get("ports") or [] if p["targetPort"] != p["port"]]
    if mapped and service["spec"].get("clusterIP") != "None":
        message = "ports are not mapped on this machine: targetPort must equal port"
        record(store, service, "Warning", "PortsNotMapped", message)


def _subsets(pods: list[Object], service: Object) -> list[Object]:
    ports = [
        {"port": p["targetPort"], "protocol": p["protocol"], **({"name": p["name"]} if p.get("name") else {})}
        for p in service["spec"].get("ports") or []
        if isinstance(p.get("targetPort"), int)
    ]
    addresses = [_address(p) for p in sorted(pods, key=name_of)]
    if not addresses:
        return []
    return [{"addresses": addresses, **({"ports": ports} if ports else {})}]


def _address(pod: Object) -> Object:
    address: Object = {
        "ip": pod["status"]["podIP"],
        "nodeName": pod["spec"]["nodeName"],
        "targetRef": {
            "kind": "Pod",
            "namespace": namespace_of(pod),
            "name": name_of(pod),
            "uid": uid_of(pod),
        },
    }
    if pod["spec"].get("hostname"):
        address["hostname"] = pod["spec"]["hostname"]
    return address
