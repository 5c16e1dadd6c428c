"""A pod's folders: its volumes, its /etc/hosts, its temporary directory; made once, removed with the pod.

https://kubernetes.io/docs/concepts/storage/volumes/
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ops.local.kubernetes.kinds import CLAIM, CONFIG_MAP, SECRET
from ops.local.kubernetes.layout import Layout
from ops.local.kubernetes.objects import Object, name_of, namespace_of, uid_of
from ops.local.kubernetes.quantities import parse_quantity
from ops.local.kubernetes.store import Ref, Store
from ops.local.node.substitutions import SHARED_MEMORY, Substitutions
from ops.local.node.variables import ConfigError, config_data, pod_field

_TEMPORARY = Path("/tmp")
TERMINATION_LOG = "termination-log"


@dataclass(frozen=True)
class PodFiles:
    """Paths of one pod."""

    environment: str
    root: Path
    pod_uid: str
    pod_name: str

    @property
    def hosts(self) -> Path:
        """Becomes the pod's /etc/hosts."""
        return self.root / "hosts"

    @property
    def resolver(self) -> Path:
        """Becomes the pod's /etc/resolv.conf: /etc/hosts has every name that the cluster's DNS would know.

        torch asks for a store's IPv6 address first. A name server that is out of the pod's reach would leave that
        question open for 5 s; where nobody listens, the answer comes at once, as it does from a cluster's DNS.
        """
        return self.root / "resolv.conf"

    @property
    def etc(self) -> dict[str, str]:
        """Files that the pod sees in another's place."""
        return {str(self.hosts): "/etc/hosts", str(self.resolver): "/etc/resolv.conf"}

    @property
    def shared_memory(self) -> Path:
        """In the machine's /dev/shm, under the names of environment and pod."""
        return SHARED_MEMORY / f"steadfast-{self.environment}-{self.pod_name}"

    @property
    def temporary(self) -> Path:
        """Short, because sockets are made in it and their paths may have 107 characters."""
        return _TEMPORARY / f"steadfast-{self.environment[-6:]}-{self.pod_uid[:8]}"

    def address(self, new: Callable[[], str]) -> str:
        """The pod's address, kept from the first moment on: a server may be killed before it reports it."""
        kept = self.root / "address"
        if not kept.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            Layout.write(kept, new())
        return kept.read_text()

    def make(self, store: Store, pod: Object, substitutions: Substitutions) -> dict[str, Path]:
        """Makes every volume; returns volume name → folder or file."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.temporary.mkdir(exist_ok=True)
        self.hosts.touch()
        self.resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        volumes = pod["spec"].get("volumes") or []
        return {v["name"]: self._volume(store, pod, v, substitutions) for v in volumes}

    def _volume(self, store: Store, pod: Object, volume: Object, substitutions: Substitutions) -> Path:
        folder = self.root / "volumes" / volume["name"]
        if "persistentVolumeClaim" in volume:
            claim = volume["persistentVolumeClaim"]["claimName"]
            if store.peek(Ref(CLAIM, namespace_of(pod), claim)) is None:
                raise ConfigError(f'persistentvolumeclaim "{claim}" not found')
            substitutions.file_system.mkdir(parents=True, exist_ok=True)
            return substitutions.file_system
        if "emptyDir" in volume:
            return self._empty_dir(volume["name"], volume["emptyDir"] or {})
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        folder.mkdir(parents=True, exist_ok=True)
        for relative, content in _files(store, pod, volume).items():
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
        return folder

    def _empty_dir(self, name: str, source: Object) -> Path:
        if source.get("medium") != "Memory":
            folder = self.temporary / name  # pods set TMPDIR to one of these, and sockets are made in it
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        folder = self.shared_memory / name
        if not folder.exists():
            folder.mkdir(parents=True)
            if source.get("sizeLimit") and os.geteuid() == 0:
                size = int(parse_quantity(source["sizeLimit"]))
                command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "steadfast", str(folder)]
                # Without the right to mount the folder has no limit of its own; the memory limit still holds.
                subprocess.run(command, capture_output=True, check=False)
        return folder

    def mounts(self, container: Object, volumes: dict[str, Path]) -> dict[str, Path]:
        """mountPath → folder, for the variables of one container."""
        mounts = {}
        for mount in container.get("volumeMounts") or []:
            folder = volumes[mount["name"]]
            if mount.get("subPath"):
                folder = folder / mount["subPath"]
                if not folder.exists():
                    folder.mkdir(parents=True)
            mounts[mount["mountPath"]] = folder
        message = self.root / container["name"] / TERMINATION_LOG
        mounts[container.get("terminationMessagePath", "/dev/termination-log")] = message
        message.parent.mkdir(parents=True, exist_ok=True)
        return mounts

    def write_hosts(self, text: str) -> None:
        """In place: the file is mounted over /etc/hosts by its inode."""
        data = text.encode()
        descriptor = os.open(self.hosts, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def remove(self, *, logs: bool) -> None:
        """Removes what the processes used; the logs stay as long as the Pod object does."""
        if self.shared_memory.exists():
            for folder in self.shared_memory.iterdir():
                if folder.is_mount():
                    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
            shutil.rmtree(self.shared_memory)
        for folder in (self.temporary, self.root / "volumes", *([self.root] if logs else [])):
            if folder.exists():
                shutil.rmtree(folder)


def pod_files(environment: str, pods: Path, pod: Object) -> PodFiles:
    """The paths of a pod."""
    return PodFiles(environment, pods / uid_of(pod), uid_of(pod), name_of(pod))


def _files(store: Store, pod: Object, volume: Object) -> dict[str, str]:
    for field, kind in (("configMap", CONFIG_MAP), ("secret", SECRET)):
        if field in volume:
            source = volume[field]
            name = source.get("name") or source.get("secretName")
            return _entries(
                config_data(store, kind, str(namespace_of(pod)), name), source, f"{field.lower()} {name!r}"
            )
    if "downwardAPI" in volume:
        items = volume["downwardAPI"].get("items") or []
        return {i["path"]: pod_field(pod, i["fieldRef"]["fieldPath"]) for i in items if "fieldRef" in i}
    if "projected" in volume:
        merged: dict[str, str] = {}
        for source in volume["projected"].get("sources") or []:
            merged |= _files(store, pod, source)
        return merged
    return {}


def _entries(data: dict[str, str] | None, source: Object, what: str) -> dict[str, str]:
    if data is None:
        if source.get("optional"):
            return {}
        raise ConfigError(f"{what} not found")
    if not source.get("items"):
        return data
    return {item["path"]: data[item["key"]] for item in source["items"]}
