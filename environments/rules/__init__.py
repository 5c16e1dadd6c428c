"""What an environment must not be: rules that no linter knows, each with the report that taught it.

A rule is a pure function from an environment to problems. `RULES` is all of them, and all are always asked, so
that a file's problems come out together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from environments.problems import Problem
from environments.rules import capacity, network, people, place, storage, training

if TYPE_CHECKING:
    from environments.environment import Environment

Rule = Callable[["Environment"], Iterator[Problem]]

RULES: tuple[Rule, ...] = (
    *place.RULES,
    *capacity.RULES,
    *network.RULES,
    *storage.RULES,
    *people.RULES,
    *training.RULES,
)


def problems_of(env: Environment) -> list[Problem]:
    """Every problem of every rule."""
    return [problem for rule in RULES for problem in rule(env)]


def not_ready(env: Environment) -> list[Problem]:
    """What a valid file still lacks before it can be synthesized."""
    return list(place.zone_is_filled_in(env))
