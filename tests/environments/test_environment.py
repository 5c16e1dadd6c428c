"""The environment file as a whole: found, read, written, and what follows from it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from pydantic import ValidationError

from environments.environment import Environment, InvalidEnvironmentError, find, load, names, parse
from environments.files import write_value
from environments.instance_types import INSTANCE_TYPES
from environments.rules import not_ready

pytestmark = pytest.mark.unit

MINIMAL = {
    "name": "small",
    "region": "us-east-1",
    "availability_zone": "us-east-1b",
    "instance_type": "p5.48xlarge",
    "nodes": 2,
    "access": {"admins": ["arn:aws:iam::111122223333:role/admin"]},
    "training": {"data": {"global_batch_size": 16}},
}


def environment(**fields: object) -> Environment:
    return parse({**MINIMAL, **fields}, "test")


@pytest.mark.parametrize("name", names())
def test_examples_are_valid_and_named_as_their_files(name: str) -> None:
    assert load(find(name)).name == name


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(InvalidEnvironmentError) as error:
        find("nope")
    assert error.value.source == "nope"
    assert all(name in str(error.value) for name in names())


@pytest.mark.parametrize("name", ["../environments/local", "tests", "local.yaml.bak"])
def test_only_names_and_yaml_files_are_found(name: str) -> None:
    with pytest.raises(InvalidEnvironmentError):
        find(name)


def test_a_path_is_found_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\n")
    assert find(str(path)) == path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: [", "line 1, column 8"),
        ("name: a\nname: b\n", "duplicate key"),
        ("just text\n", "holds no fields"),
        ("", "holds no fields"),
        ("? [1, 2]\n: 3\n", "keys should be strings"),
        ("name: a\naccess:\n\tadmins: []\n", "line 3, column 1"),
        ("name: a\n---\nname: b\n", "another document"),
        (f"nodes: {'9' * 5000}\n", "line 1, column 8: a number of 5000 digits"),
        (f"name: {'[' * 20_000}\n", "is nested too deeply"),
        ("name: !!python/object/apply:os.system [ls]\n", "could not determine a constructor"),
        ("name: \x00\n", "special characters are not allowed"),
    ],
)
def test_what_is_not_a_file_of_fields_is_said_so(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(InvalidEnvironmentError) as error:
        load(path)
    assert message in str(error.value)


def test_a_missing_file_is_a_problem_not_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(InvalidEnvironmentError, match="No such file"):
        load(tmp_path / "none.yaml")


def test_anchors_and_merged_keys_are_plain_yaml(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(
        "name: &name small\nowner: *name\nregion: us-east-1\navailability_zone: us-east-1b\n"
        "instance_type: p5.48xlarge\nnodes: 2\naccess:\n"
        "  <<: {admins: [arn:aws:iam::111122223333:role/admin]}\ntraining: {data: {global_batch_size: 16}}\n"
    )
    assert load(path).owner == "small"


def test_values_that_repeat_themselves_are_shortened(tmp_path: Path) -> None:
    """A list of lists of lists by anchors is small on disk and endless in a message."""
    path = tmp_path / "e.yaml"
    levels = [f"t{n}: &t{n} [{','.join([f'*t{n - 1}'] * 9)}]" for n in range(1, 8)]
    path.write_text("\n".join(["t0: &t0 [a]", *levels, "name: *t7", "tags: *t7"]))
    with pytest.raises(InvalidEnvironmentError) as error:
        load(path)
    assert len(str(error.value)) < 6000


ROOT_LINK = {"path": "/", "prefix": "", "imports": ["NEW"], "exports": ["NEW", "CHANGED"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"account": "111122223333", "permissions_boundary": "arn:aws:iam::aws:policy/PowerUserAccess"},
        {"network": {"cidr": "100.64.0.0/16"}},
        {"secrets": ["team/token", "team/other"]},
        {"owner": "Zoë", "cost_centre": "4711", "tags": {"größe": "ü", "empty": ""}},
        {"archive": {"bucket": "ours-s3alias-old"}},
        {"file_system": {"associations": [ROOT_LINK]}},
        {
            "region": "us-gov-west-1",
            "availability_zone": "us-gov-west-1a",
            "access": {"admins": ["arn:aws-us-gov:iam::111122223333:role/admin"]},
        },
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_is_unusual_and_right_is_taken(fields: dict[str, object]) -> None:
    assert environment(**fields)


def test_the_environment_is_frozen() -> None:
    with pytest.raises(ValidationError):
        environment().nodes = 3


def test_spares_do_not_train() -> None:
    assert environment(spares=1).world_size == 16


def test_the_second_zone_is_another_one() -> None:
    assert environment().second_availability_zone == "us-east-1a"
    assert environment(availability_zone="us-east-1a").second_availability_zone == "us-east-1b"
    chosen = environment(network={"second_availability_zone": "us-east-1f"})
    assert chosen.second_availability_zone == "us-east-1f"


def test_tags_carry_owner_and_expiry_only_when_given() -> None:
    plain = environment().all_tags
    assert plain == {"steadfast:environment": "small"}
    full = environment(owner="me", cost_centre="1", expires="2027-01-31", tags={"team": "x"}).all_tags
    assert full == {
        "team": "x",
        "steadfast:environment": "small",
        "steadfast:owner": "me",
        "steadfast:cost-centre": "1",
        "steadfast:expires": "2027-01-31",
    }


def test_a_zone_still_to_be_asked_for_is_valid_but_not_ready() -> None:
    reserved = {"kind": "odcr", "reservation": "cr-0123456789abcdef0"}
    waiting = environment(availability_zone="from-reservation", capacity=reserved)
    assert [problem.field for problem in not_ready(waiting)] == ["availability_zone"]
    assert not_ready(environment(capacity=reserved)) == []


def test_writing_a_value_keeps_comments_order_and_quotes(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    before = "# top\nname: 'a' # why\n\navailability_zone: from-reservation # asked for\narchive:\n  prefix: x\n"
    path.write_text(before)
    write_value(path, "availability_zone", "us-east-1c")
    # Column and all: a comment stays where it began.
    assert path.read_text() == before.replace("from-reservation", "us-east-1c      ")
    write_value(path, "archive.bucket", "kept")
    write_value(path, "file_system.efa", True)
    after = path.read_text()
    assert "  prefix: x\n  bucket: kept\n" in after
    assert after.endswith("file_system:\n  efa: true\n")
    assert list(tmp_path.iterdir()) == [path]


def test_writing_into_what_is_not_yaml_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("name: [")
    with pytest.raises(InvalidEnvironmentError):
        write_value(path, "name", "x")
    assert path.read_text() == "name: ["


def test_the_whole_matrix_of_families_and_capacities_is_judged_by_the_rules() -> None:
    """Every family with every kind of capacity, size, endpoint and file system: only blocks of g6e are refused."""
    block = {"kind": "capacity-block", "reservation": "cr-0123456789abcdef0"}
    block |= {"start": "2027-03-01T11:30:00Z", "end": "2027-03-15T11:30:00Z"}
    kinds = [{"kind": "on-demand"}, {"kind": "odcr", "reservation": "cr-0123456789abcdef0"}, block]
    cidr: dict[str, object] = {"endpoint": "cidr", "endpoint_cidrs": ["198.51.100.0/24"]}
    endpoints: list[dict[str, object]] = [{"endpoint": "public"}, {"endpoint": "private"}, cidr]
    judged, refused = 0, set()
    for name, row in INSTANCE_TYPES.items():
        for capacity, nodes, endpoint, efa in product(kinds, (1, 2, 8, 64), endpoints, (False, True)):
            judged += 1
            batch = {"data": {"global_batch_size": nodes * row.gpus}}
            fields = {"instance_type": name, "capacity": capacity, "nodes": nodes, "file_system": {"efa": efa}}
            try:
                environment(**fields, **endpoint, training=batch)
            except InvalidEnvironmentError:
                refused.add((name, capacity["kind"]))
    assert judged == 648
    assert refused == {("g6e.48xlarge", "capacity-block")}
