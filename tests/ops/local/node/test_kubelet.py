"""The kubelets of all nodes without a cluster: what the control plane makes of their time, what they keep."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ops.local.kubernetes.kinds import NODE
from ops.local.kubernetes.nodes import NodeMonitor, NodeSpec, node_object
from ops.local.kubernetes.objects import condition_is
from ops.local.kubernetes.store import Ref, Store
from ops.local.node.cgroups import Cgroups
from ops.local.node.kubelet import Kubelet
from ops.local.node.names import Names
from ops.local.node.network import Loopback
from ops.local.node.pod_files import PodFiles
from ops.local.node.substitutions import Substitutions

pytestmark = pytest.mark.unit

SCALE = 0.02
GRACE_S = 50.0 * SCALE


class Clock:
    """What time.time says."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(name="clock")
def _clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.time", clock)
    return clock


def test_a_node_is_silent_when_it_is_gone_and_not_when_the_process_that_plays_all_is_slow(
    clock: Clock, tmp_path: Path
) -> None:
    store, substitutions = Store(tmp_path / "db"), Substitutions(tmp_path, tmp_path, network="loopback")
    store.create(node_object(NodeSpec("a"), "1.35", "127.0.0.1"))
    monitor, name = NodeMonitor(store, SCALE), f"env-{tmp_path.name}"
    groups = Cgroups(name, None, None, 2)
    kubelet = Kubelet(store, monitor, Loopback(name), groups, substitutions, tmp_path, name, SCALE)

    def is_ready() -> bool:
        monitor.step()
        return condition_is(store.get(Ref(NODE, None, "a")), "Ready")

    kubelet.step()
    clock.now_s += 3 * GRACE_S  # as slow as that
    assert is_ready()
    with ThreadPoolExecutor() as threads:
        killed = threads.submit(kubelet.operate, "a", "kill")
        while kubelet._operations.empty():
            time.sleep(0.001)
        clock.now_s += 3 * GRACE_S
        kubelet.step()
        killed.result()
    assert is_ready()
    clock.now_s += 1.1 * GRACE_S
    kubelet.step()
    assert not is_ready()


def test_addresses_survive_a_server_that_is_killed_while_it_writes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def killed(file: Path, text: str) -> int:
        file.open("w").close()
        raise KilledError

    names = Names(Store(tmp_path / "db"), Loopback("env-abcdef"), tmp_path / "addresses")
    files = [PodFiles("env", tmp_path / uid, uid, uid) for uid in ("a", "b")]
    pod = {"spec": {}}
    first = files[0].address(lambda: names.address_for(pod))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", killed)
        with pytest.raises(KilledError):
            files[1].address(lambda: names.address_for(pod))
        with pytest.raises(KilledError):
            files[1].address(lambda: "127.9.9.9")
    second = files[1].address(lambda: names.address_for(pod))
    assert second not in ("", first)
    assert [f.address(lambda: "another") for f in files] == [first, second]
