"""One wrong file per rule: exactly the messages that its first lines expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.environment import InvalidEnvironmentError, load
from environments.rules import RULES

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).parent / "negative"
FILES = sorted(FOLDER.glob("*.yaml"))
EXPECTED = "# expected: "


def expected_problems(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(EXPECTED) for line in lines if line.startswith(EXPECTED)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_exactly_the_expected_messages(path: Path) -> None:
    with pytest.raises(InvalidEnvironmentError) as error:
        load(path)
    assert error.value.problems == expected_problems(path)
    assert error.value.source == str(path)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_message_has_field_reason_and_fix(path: Path) -> None:
    for message in expected_problems(path):
        field, _, rest = message.partition(": ")
        assert field and " " not in field.split(".")[0]
        assert len(rest.split("; ")) >= 3, message


def test_every_rule_has_a_file_that_breaks_it() -> None:
    covered = {path.stem.split(".")[0] for path in FILES}
    assert {rule.__name__ for rule in RULES} <= covered
