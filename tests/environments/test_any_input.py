"""Whatever a file holds, the answer is an environment or a list of problems, never a traceback."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.environment import Environment, InvalidEnvironmentError, find, load, names, parse

pytestmark = pytest.mark.unit

TEXT = st.text(alphabet="azé09-_./:@ $\n", max_size=12)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5000), st.floats(allow_nan=False), TEXT)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
NUMBERS = st.integers(-3, 100_000)
CIDRS = st.builds("{}.{}.{}.{}/{}".format, *[st.integers(0, 300)] * 4, st.integers(0, 40))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "nodes": NUMBERS,
    "spares": NUMBERS,
    "network": st.fixed_dictionaries({"cidr": CIDRS}),
    "endpoint_cidrs": st.lists(CIDRS, max_size=2),
    "endpoint": st.sampled_from(["public", "cidr", "private"]),
    "file_system": st.fixed_dictionaries({"size_gib": NUMBERS, "efa": st.booleans(), "metadata_iops": NUMBERS}),
    "tags": st.dictionaries(TEXT, TEXT, max_size=3),
    "training": st.fixed_dictionaries({"data": st.fixed_dictionaries({"global_batch_size": NUMBERS})}),
}
CALM = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
BASE = load(find("two-node-p5")).model_dump(exclude_unset=True)


def judged(data: Any) -> None:
    try:
        assert isinstance(parse(data, "any"), Environment)
    except InvalidEnvironmentError as error:
        assert error.problems
        assert all(": " in problem for problem in error.problems)


@CALM
@given(st.dictionaries(st.sampled_from([*Environment.model_fields, "other"]), ANYTHING, max_size=6))
def test_any_values_in_any_fields(data: dict[str, Any]) -> None:
    judged(data)
    judged({**BASE, **data})


@CALM
@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_plausible_values_reach_every_rule(data: dict[str, Any]) -> None:
    judged({**BASE, **data})


def test_there_are_examples_to_begin_with() -> None:
    assert {"local", "two-node-p5", "eight-node-p5"} <= set(names())
