"""What an environment must not be: rules that no linter knows, each with the report that taught it.

A rule is a pure function from an environment to problems; `RULES` is all of them, and all are always asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from environments.problems import Problem

if TYPE_CHECKING:
    from environments.environment import Environment

Rule = Callable[["Environment"], Iterator[Problem]]


def zone_is_in_region(env: Environment) -> Iterator[Problem]:
    """The zone's name begins with the region's."""
    if env.availability_zone != "from-reservation" and not env.availability_zone.startswith(env.region):
        yield Problem(
            "availability_zone", f"{env.availability_zone} is not in region {env.region}",
            f"a zone of {env.region}, such as {env.region}a", "correct the zone, or the region",
        )  # fmt: skip


RULES: tuple[Rule, ...] = (zone_is_in_region,)


def problems_of(env: Environment) -> list[Problem]:
    """Every problem of every rule."""
    return [problem for rule in RULES for problem in rule(env)]
