"""The matrix is small and still leaves no pair of choices out."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.unit


def test_every_pair_that_the_rules_allow_is_in_the_matrix(missing_pairs: set[tuple[str, str]]) -> None:
    assert missing_pairs == {("instance_type=g6e.48xlarge", "capacity=capacity-block")}
