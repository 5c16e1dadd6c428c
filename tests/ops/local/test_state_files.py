"""State that another version of the code has left under `.local/`: refused in words, never with a traceback."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.errors import Code
from ops.failures import explain
from ops.local.aws.local_aws import LocalAws
from ops.local.aws.settings import Settings
from ops.local.aws.snapshot_format import content_of, sign, stamp
from ops.local.kubernetes.cluster import LocalCluster
from ops.local.kubernetes.layout import Layout
from ops.local.kubernetes.settings import ClusterSettings
from ops.local.kubernetes.store import Store
from ops.local.kubernetes.testing import plain_nodes
from ops.local.node.substitutions import Substitutions
from ops.local.state_files import UnreadableStateError

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}


def refused(error: UnreadableStateError, file: Path, disposable: Path, *words: str) -> None:
    """The message names the file and the reason, the fix what to remove; the command ends with 3."""
    failure = explain(error)
    assert failure.code == Code.REFUSED
    assert failure.message.startswith(f"{file} cannot be used: ")
    assert failure.fix is not None
    assert failure.fix.endswith(f"`rm -r {disposable}`")
    for word in words:
        assert word in failure.message


# --- the objects of Kubernetes


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A database with one object."""
    path = tmp_path / "kubernetes" / "objects.sqlite"
    store = Store(path)
    store.create(NAMESPACE)
    store.close()
    return path


@pytest.mark.unit
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA user_version=99", ("another version of this project wrote it", "format 99")),
        ("PRAGMA user_version=0", ("another version of this project wrote it", "format 0")),
        ('UPDATE objects SET body=\'{"apiVersion": "v9", "kind": "Old"}\'', ("does not know", "v9 Old")),
        ("UPDATE objects SET body='nothing'", ("does not know",)),
    ],
)
def test_objects_of_another_version_are_refused(database: Path, statement: str, words: tuple[str, ...]) -> None:
    with sqlite3.connect(database) as changed:
        changed.execute(statement)
    changed.close()
    with pytest.raises(UnreadableStateError) as error:
        Store(database)
    refused(error.value, database, database.parent, *words)


@pytest.mark.unit
def test_a_damaged_database_is_refused(database: Path) -> None:
    database.write_bytes(b"no database at all, and long enough to be read as a header" * 10)
    with pytest.raises(UnreadableStateError) as error:
        Store(database)
    refused(error.value, database, database.parent, "damaged", "not a database")


@pytest.mark.unit
def test_a_database_of_this_version_is_read_again(database: Path) -> None:
    again = Store(database)
    assert len(again.changes_since(again.version, 0)) == 0
    assert again.version == 2
    again.close()


def _settings(folder: Path) -> tuple[Layout, ClusterSettings]:
    layout = Layout(folder)
    layout.root.mkdir(parents=True)
    substitutions = Substitutions(folder / "fsx", folder, network="loopback")
    return layout, ClusterSettings(tuple(plain_nodes(2)), "1.35", substitutions, 0.5)


@pytest.mark.unit
def test_settings_of_a_cluster_come_back_as_they_were(tmp_path: Path) -> None:
    layout, settings = _settings(tmp_path)
    settings.write(layout)
    assert ClusterSettings.read(layout) == settings


@pytest.mark.unit
@pytest.mark.parametrize("missing", ["nodes", "kubernetes_version", "substitutions", "time_scale"])
def test_settings_of_another_version_are_refused(tmp_path: Path, missing: str) -> None:
    layout, settings = _settings(tmp_path)
    settings.write(layout)
    facts = json.loads(layout.settings.read_text())
    del facts[missing]
    layout.settings.write_text(json.dumps(facts))
    with pytest.raises(UnreadableStateError) as error:
        ClusterSettings.read(layout)
    refused(error.value, layout.settings, layout.root, f"it lacks '{missing}'")


@pytest.mark.unit
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": "x", "port": 1}', '{"pid": 1}'])
def test_an_address_of_another_version_is_no_address(tmp_path: Path, text: str) -> None:
    layout, _ = _settings(tmp_path)
    layout.address.write_text(text)
    assert layout.last_address() == {}
    (tmp_path / "aws-server.json").write_text(text)
    assert not LocalAws(tmp_path).is_running()


@pytest.mark.integration
def test_a_cluster_with_objects_of_another_version_does_not_start_and_can_be_ended(tmp_path: Path) -> None:
    layout, settings = _settings(tmp_path)
    Store(layout.database).close()
    with sqlite3.connect(layout.database) as changed:
        changed.execute("PRAGMA user_version=99")
    cluster = LocalCluster(tmp_path)
    with pytest.raises(UnreadableStateError) as error:
        cluster.start(settings.nodes, "1.35", settings.substitutions)
    refused(error.value, layout.database, layout.root, "another version")
    assert layout.database.exists()
    assert not cluster.is_running()
    assert "Traceback" not in layout.log.read_text()
    layout.settings.write_text("{}")
    with pytest.raises(UnreadableStateError) as worse:
        cluster.restart()
    refused(worse.value, layout.settings, layout.root, "it lacks 'nodes'")
    cluster.stop()
    assert not layout.root.exists()


# --- the emulated AWS


@pytest.mark.unit
def test_a_snapshot_is_read_by_the_code_that_wrote_it_only() -> None:
    mine = stamp()
    signed = sign(mine, b"content\nof two lines")
    assert content_of(signed, mine) == b"content\nof two lines"
    for other in ({"format": 0}, {"moto": "4.0"}, {"fields": "0" * 16}):
        with pytest.raises(ValueError, match="another version of this project wrote it") as differs:
            content_of(sign(mine | other, b""), mine)
        assert str(next(iter(other.values()))) in str(differs.value)
    with pytest.raises(ValueError, match="does not say which version"):
        content_of(b"\x80\x05 a pickle without a first line", mine)


@pytest.mark.unit
def test_a_new_field_makes_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from ops.local.aws.services import reservations

    before = stamp()["fields"]
    fields = reservations.Reservation.__dataclass_fields__
    monkeypatch.delitem(fields, "match")
    assert stamp()["fields"] != before


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[LocalAws]:
    """An emulated AWS that has not been started."""
    made = LocalAws(tmp_path / "aws")
    made.state_dir.mkdir()
    yield made
    made.stop()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("world.pickle", b"\x80\x05N.", "does not say which version of this project wrote it"),
        ("aws.json", b'{"kubernetes": "k"}', "kubernetes: Extra inputs are not permitted"),
    ],
)
def test_an_emulator_with_files_of_another_version_does_not_start(
    aws: LocalAws, name: str, content: bytes, words: str
) -> None:
    file = aws.state_dir / name
    file.write_bytes(content)
    with pytest.raises(UnreadableStateError) as error:
        aws.start()
    refused(error.value, file, file if name == "aws.json" else aws.state_dir, words)
    assert file.read_bytes() == content
    assert not aws.is_running()
    assert "Traceback" not in (aws.state_dir / "server.log").read_text()


@pytest.mark.integration
def test_a_damaged_snapshot_of_this_version_is_refused(aws: LocalAws) -> None:
    aws.start(Settings())
    aws.stop()
    snapshot = aws.state_dir / "world.pickle"
    snapshot.write_bytes(snapshot.read_bytes()[:-100])
    with pytest.raises(UnreadableStateError) as error:
        aws.start()
    refused(error.value, snapshot, aws.state_dir, "it is damaged")


@pytest.mark.unit
def test_settings_of_the_emulator_of_another_version_are_refused_with_every_problem(aws: LocalAws) -> None:
    file = aws.state_dir / "aws.json"
    file.write_text('{"time_scale": 0, "old": 1}')
    with pytest.raises(UnreadableStateError) as error:
        _ = aws.settings
    refused(error.value, file, file, "time_scale: Input should be greater than 0", "old: Extra inputs")
