"""Memory from the model, accelerators from the table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.environment import Environment
from environments.instance_types import INSTANCE_TYPES
from k8s.quantities import size_bytes
from k8s.resources import (
    GIB,
    MIB,
    DoesNotFitError,
    allocatable_bytes,
    fitting_pod_memory,
    pod_memory,
    state_bytes_per_rank,
    training_resources,
)
from trainer.config import TrainConfig

pytestmark = pytest.mark.unit
EIGHT_B = {
    "vocab_size": 128256,
    "dim": 4096,
    "num_layers": 32,
    "num_heads": 32,
    "num_kv_heads": 8,
    "ffn_dim": 14336,
}
SEVENTY_B = {**EIGHT_B, "dim": 8192, "num_layers": 80, "num_heads": 64, "ffn_dim": 28672}


def test_an_8b_model_on_two_p5(make_environment: Any) -> None:
    environment = make_environment(training={"model": EIGHT_B})
    params = environment.training.model.num_params
    assert params == 8_030_261_248
    shard = -(-params * 12 // 16)
    memory = pod_memory(environment.training, gpus=8, world_size=16)
    assert memory.arena_bytes == 8 * 2 * (int(1.05 * shard) + 16 * MIB)
    assert memory.shm_bytes == -(-(memory.arena_bytes + 8 * 256 * MIB) // GIB) * GIB
    assert memory.arena_bytes <= 0.45 * memory.limit_bytes
    assert memory.limit_bytes // GIB == 210


@given(
    world=st.sampled_from([1, 2, 16, 64, 512]),
    slots=st.integers(1, 2),
    workers=st.integers(0, 8),
    layers=st.integers(1, 64),
    fraction=st.floats(0.05, 0.9),
)
def test_the_limit_holds_shared_memory_and_the_stores_own_bound(
    world: int, slots: int, workers: int, layers: int, fraction: float
) -> None:
    training = TrainConfig.model_validate(
        {
            "model": {**EIGHT_B, "num_layers": layers},
            "data": {"num_workers": workers},
            "checkpoint": {"host_slots": slots, "max_host_fraction": fraction},
        }
    )
    gpus = min(8, world)
    memory = pod_memory(training, gpus, world)
    shard = state_bytes_per_rank(training.model, world)
    assert memory.shm_bytes >= memory.arena_bytes >= gpus * slots * shard
    assert memory.limit_bytes > memory.shm_bytes
    assert memory.arena_bytes <= fraction * memory.limit_bytes
    assert memory.shm_bytes % GIB == memory.limit_bytes % GIB == 0


@pytest.mark.parametrize("name", INSTANCE_TYPES)
def test_what_fits_leaves_room_for_the_node_and_its_huge_pages(name: str, make_environment: Any) -> None:
    environment: Environment = make_environment(instance_type=name)
    memory = fitting_pod_memory(environment)
    limits = training_resources(environment, memory)["limits"]
    assert (
        size_bytes(limits["memory"]) + size_bytes(limits["hugepages-2Mi"]) < environment.instance.memory_gib * GIB
    )
    assert allocatable_bytes(environment.instance) > 0.8 * environment.instance.memory_gib * GIB


def test_a_model_that_does_not_fit_says_what_to_change(make_environment: Any) -> None:
    environment = make_environment(nodes=1, training={"model": SEVENTY_B})
    with pytest.raises(DoesNotFitError, match=r"GiB are snapshots.*use more nodes.*host_slots"):
        fitting_pod_memory(environment)
    assert fitting_pod_memory(make_environment(nodes=8, training={"model": SEVENTY_B}))


@pytest.mark.parametrize(("text", "expected"), [("5120Mi", 5120 * MIB), ("2G", 2 * 10**9), ("7", 7), (7, 7)])
def test_quantities(text: str | int, expected: int) -> None:
    assert size_bytes(text) == expected


def test_a_quantity_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"1\.5Gi"):
        size_bytes("1.5Gi")
