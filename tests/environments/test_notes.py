"""Notes appear where they apply, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from environments.environment import find, load, parse
from environments.notes import notes

pytestmark = pytest.mark.unit

RESERVATION = {"capacity": {"kind": "odcr", "reservation": "cr-0123456789abcdef0"}}


def fields_of(**changes: Any) -> set[str]:
    base = load(find("two-node-p5")).model_dump(exclude_unset=True)
    return {note.split(":")[0] for note in notes(parse({**base, **RESERVATION, **changes}, "test"))}


def test_the_plain_case_has_none() -> None:
    assert fields_of() == set()


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"kubernetes_version": "1.36"}, {"kubernetes_version"}),
        ({"endpoint": "cidr", "endpoint_cidrs": ["198.51.100.0/24"]}, {"endpoint"}),
        ({"endpoint": "private", "plugins": "by-cli"}, {"endpoint", "plugins"}),
        ({"capacity": {"kind": "on-demand"}}, {"capacity"}),
        ({"file_system": {"efa": True}}, {"file_system.efa"}),
        ({"archive": {"adopt": True}}, {"archive.adopt"}),
        ({"spares": 3}, {"spares"}),
    ],
)
def test_each_note_has_its_cause(changes: dict[str, Any], fields: set[str]) -> None:
    assert fields_of(**changes) == fields
