"""Addresses of pods and what the names of pods and Services resolve to."""

from __future__ import annotations

import re
from pathlib import Path

from ops.local.kubernetes.endpoints import CLUSTER_DOMAIN, backends, names_of_pod, names_of_service
from ops.local.kubernetes.kinds import POD, SERVICE
from ops.local.kubernetes.layout import Layout
from ops.local.kubernetes.objects import Object, is_finished_pod, name_of, namespace_of, uid_of
from ops.local.kubernetes.store import Store
from ops.local.node.network import Network
from ops.local.node.substitutions import replace_names

_Key = tuple[str, str, str]
"""Namespace, subdomain, host name."""


class Names:
    """The cluster's DNS, as far as pods of this machine need it."""

    def __init__(self, store: Store, network: Network, counter: Path) -> None:
        self._store, self._network, self._counter = store, network, counter
        self.addresses: dict[str, str] = {}
        """Pod uid → address, from before the pod's status says it until its network is given back."""
        self._promised: dict[_Key, str] = {}

    def address_for(self, pod: Object) -> str:
        """The address promised to a pod of that name, else a new one: no address is given out twice."""
        key = _key(pod)
        if key is not None and key in self._promised:
            return self._promised.pop(key)
        return self._new()

    def _new(self) -> str:
        number = int(self._counter.read_text()) if self._counter.exists() else 0
        Layout.write(self._counter, str(number + 1))
        return self._network.pod_address(number)

    def in_namespace(self, namespace: str | None) -> dict[str, str]:
        """Every name that resolves there → its address."""
        names: dict[str, str] = {}
        for service in self._store.select(SERVICE):
            address = self._service_address(service)
            if address:
                listed = names_of_service(service)
                names |= dict.fromkeys(listed if namespace_of(service) == namespace else listed[:-1], address)
        for pod in self._store.select(POD):
            address = self.addresses.get(uid_of(pod))
            if address and not is_finished_pod(pod):
                listed = names_of_pod(self._store, pod)
                names |= dict.fromkeys(listed if namespace_of(pod) == namespace else listed[:-1], address)
        return names

    def _service_address(self, service: Object) -> str | None:
        address = service["spec"].get("clusterIP")
        if address != "None":
            return str(address) if address else None
        pods = backends(self._store, service)
        return str(pods[0]["status"]["podIP"]) if pods else None

    def rewrite(self, text: str) -> str:
        """Names in a value or an argument become addresses, where no /etc/hosts of the pod's own can tell them."""
        if self._network.mode == "namespaces" or "." not in text:
            return text
        names: dict[str, str] = {}
        for namespace in {namespace_of(s) for s in self._store.select(SERVICE)}:
            names |= self.in_namespace(namespace)
        return self._promise(replace_names(text, names))

    def _promise(self, text: str) -> str:
        """Pods behind a headless Service that do not exist yet get their addresses now."""
        for service in self._store.select(SERVICE):
            if service["spec"].get("clusterIP") != "None":
                continue
            subdomain, namespace = name_of(service), str(namespace_of(service))
            tail = rf"\.{subdomain}\.{namespace}\.svc(?:\.{CLUSTER_DOMAIN})?(?![\w.-])"
            for hostname in set(re.findall(rf"([a-z0-9-]+){tail}", text)):
                text = re.sub(hostname + tail, self._promised_to((namespace, subdomain, hostname)), text)
        return text

    def _promised_to(self, key: _Key) -> str:
        if key not in self._promised:
            self._promised[key] = self._new()
        return self._promised[key]


def _key(pod: Object) -> _Key | None:
    hostname, subdomain = pod["spec"].get("hostname"), pod["spec"].get("subdomain")
    return (str(namespace_of(pod)), subdomain, hostname) if hostname and subdomain else None
