"""The command as people call it: bad input, its messages, its exit codes, and that nothing was created."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ops.deploy_lock import deploy_lock
from ops.options import Call
from ops.verbs import app

pytestmark = pytest.mark.unit

GOOD = """\
name: small
region: us-east-1
availability_zone: us-east-1a
instance_type: p5.4xlarge
nodes: 2
access: {admins: ["arn:aws:iam::111122223333:role/Admin"]}
training:
  loop: {steps: 40}
"""


@pytest.fixture(name="home", autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEADFAST_LOCAL", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture(name="small")
def _small(home: Path) -> Path:
    path = home / "small.yaml"
    path.write_text(GOOD)
    return path


def steadfast(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_of(home: Path, run: str, **config: object) -> None:
    """A run directory, as an earlier submission left it."""
    from trainer.config import LoopConfig, TrainConfig

    root = home / "state" / "small" / "fsx" / "runs" / run
    root.mkdir(parents=True)
    loop = LoopConfig(**{"steps": 40, "peak_tflops_per_gpu": 989.0, **config})  # type: ignore[arg-type]
    content = {"run": run, "submission": 1, "config": TrainConfig(loop=loop).model_dump(mode="json")}
    (root / "run.json").write_text(json.dumps(content))


def refused(result: Result, code: int, *words: str) -> None:
    """The code, every word, no traceback, and no state but what was there."""
    text = result.output
    assert result.exit_code == code, text
    assert "Traceback" not in text
    for word in words:
        assert word in text, text


def nothing_created(home: Path) -> None:
    state = home / "state"
    made = (
        [path for path in state.rglob("*") if path.is_file() and path.name != "run.json"] if state.exists() else []
    )
    assert made == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("nodes: 2", "nodes: 2\nnods: 3"), ("small.yaml", "nods", "did you mean")),
        (("nodes: 2", "nodes: two"), ("small.yaml", "nodes", "two")),
        (("p5.4xlarge", "p5.5xlarge"), ("small.yaml", "instance_type", "p5.5xlarge")),
        (("steps: 40", "stepps: 40"), ("training.loop.stepps",)),
        (("name: small", "name: [small"), ("small.yaml", "line")),
    ],
)
def test_a_wrong_environment_file(
    home: Path, small: Path, change: tuple[str, str], words: tuple[str, ...]
) -> None:
    small.write_text(GOOD.replace(*change))
    refused(steadfast("submit", small, "--local", "--run", "r"), 2, *words)
    refused(steadfast("synth", small, "--out", home / "out"), 2, *words)
    assert not (home / "out").exists()
    nothing_created(home)


def test_synth_into_a_file_is_refused(home: Path, small: Path) -> None:
    (home / "out").write_text("mine")
    refused(steadfast("synth", small, "--out", home / "out"), 2, "--out", "is a file")
    assert (home / "out").read_text() == "mine"


def test_check_write_reads_a_wrong_file_like_every_verb(small: Path) -> None:
    small.write_text(GOOD.replace("nodes: 2", "nodes: two"))
    refused(steadfast("check", small, "--write"), 2, "small.yaml", "nodes: is 'two'")


def test_every_problem_of_a_file_is_said_at_once(home: Path, small: Path) -> None:
    small.write_text(GOOD.replace("nodes: 2", "nodes: 0\nspears: 1").replace("us-east-1a", "mars"))
    refused(steadfast("price", small), 2, "nodes", "spears", "availability_zone")


def test_an_environment_that_does_not_exist_names_those_that_do() -> None:
    refused(steadfast("price", "nowhere"), 2, "nowhere", "local", "two-node-p5")


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("- {id: a, class: earthquake, rank: 0, step: 5}", ("faults.yaml", "entry 0 (a)", "class")),
        ("- {id: a, class: sigkill, rank: 2, step: 5}", ("entry 0 (a)", "rank", "ranks 0 to 1")),
        ("- {id: a, class: sigkill, rank: 0, step: 41}", ("entry 0 (a)", "step", "41", "40")),
        ("- {id: a, class: sigkill, rank: 0, stp: 5}", ("stp",)),
        ("- {id: a, class: sigkill, rank: 0, step: 5}\n- {id: a, class: nan, rank: 0, step: 6}", ("used twice",)),
        ("id: a", ("faults.yaml",)),
        ("- {id: [", ("faults.yaml", "not YAML")),
    ],
)
def test_a_wrong_fault_file(home: Path, small: Path, entry: str, words: tuple[str, ...]) -> None:
    faults = home / "faults.yaml"
    faults.write_text(entry + "\n")
    refused(
        steadfast("submit", small, "--local", "--run", "r", "--faults", faults), 2, *words, "nothing was created"
    )
    nothing_created(home)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            "id: a, class: nan, step: 5, ranc: 1",
            "entry 0 (a): ranc: is not a field; unknown fields are refused; did you",
        ),
        ("id: a, clas: nan, step: 5", "entry 0 (a): class: is missing; the field is required; add it"),
        ("id: a, class: , step: 5", "entry 0 (a): class: is empty"),
        ("id: a, class: nan, step: 0", "entry 0 (a): step: is 0; greater than or equal to 1; change it"),
        ("id: a, class: nan, step: soon", "entry 0 (a): step: is 'soon'; a whole number; change it"),
        ("id: A_b, class: nan, step: 5", "entry 0 (A_b): id: is 'A_b'; at most 40 lower-case letters"),
        ("id: a, class: sigkil, step: 5", "entry 0 (a): class: is 'sigkil'; 'exception',"),
    ],
)
def test_problems_of_a_fault_file_say_where_why_and_how_to_mend(
    home: Path, small: Path, entry: str, problem: str
) -> None:
    faults = home / "faults.yaml"
    faults.write_text(f"- {{{entry}}}\n- just text\n")
    second = "entry 1: whole entry: is 'just text'; a section with fields; change it"
    result = steadfast("submit", small, "--local", "--run", "r", "--faults", faults)
    refused(result, 2, f"{faults}: {problem}", f"{faults}: {second}")


def test_a_fault_file_that_is_not_there(home: Path, small: Path) -> None:
    refused(steadfast("submit", small, "--local", "--run", "r", "--faults", home / "no.yaml"), 2, "no.yaml")


def test_all_problems_of_a_submission_are_said_at_once(home: Path, small: Path) -> None:
    faults = home / "faults.yaml"
    faults.write_text("- {id: a, class: sigkill, rank: 9, step: 5}\n")
    result = steadfast("submit", small, "--local", "--run", "Bad_Name", "--faults", faults, "--resume")
    refused(result, 2, "Bad_Name", "rank", "no run Bad_Name to resume")
    nothing_created(home)


def test_a_run_that_exists_needs_resume(home: Path, small: Path) -> None:
    run_of(home, "first")
    refused(steadfast("submit", small, "--local", "--run", "first"), 2, "first exists", "--resume")
    nothing_created(home)


def test_a_target_below_the_resumed_one(home: Path, small: Path) -> None:
    run_of(home, "first")
    result = steadfast("submit", small, "--local", "--run", "first", "--resume", "--steps", 30)
    refused(result, 2, "loop.steps", "30", "40", "only grow")
    nothing_created(home)


def test_a_resumed_run_keeps_its_configuration(home: Path, small: Path) -> None:
    run_of(home, "first", eval_every=7)
    refused(steadfast("submit", small, "--local", "--run", "first", "--resume"), 2, "loop.eval_every", "7")


@pytest.mark.parametrize("steps", [0, -3])
def test_a_target_that_is_none(home: Path, small: Path, steps: int) -> None:
    refused(steadfast("submit", small, "--local", "--run", "r", "--steps", steps), 2, "--steps", str(steps))
    nothing_created(home)


def test_more_ranks_than_this_machine_runs(home: Path) -> None:
    result = steadfast("submit", "two-node-p5", "--local", "--run", "r")
    refused(result, 2, "16 ranks", "at most 4", "steadfast clone two-node-p5")
    nothing_created(home)


def test_a_batch_that_does_not_divide(home: Path, small: Path) -> None:
    small.write_text(GOOD.replace("training:", "training:\n  data: {global_batch_size: 7}"))
    refused(steadfast("submit", small, "--local", "--run", "r"), 2, "global_batch_size", "7")
    nothing_created(home)


def test_a_missing_option_is_a_usage_error(small: Path) -> None:
    refused(steadfast("submit", small), 2, "--run")


@pytest.mark.parametrize("verb", ["logs", "stop"])
def test_asking_an_environment_that_is_not_up(small: Path, verb: str) -> None:
    refused(steadfast(verb, small, "--local", "--run", "r"), 2, "small is not up on this machine")


def test_runs_of_an_environment_that_is_not_up_are_read_from_their_directories(home: Path, small: Path) -> None:
    run_of(home, "first")
    (home / "state" / "small" / "fsx" / "runs" / "first" / "progress").write_text("30")
    listed = json.loads(steadfast("list", small, "--local", "--json").stdout)["runs"]
    assert [(row["run"], row["state"], row["step"], row["target"]) for row in listed] == [
        ("first", "not running", 30, 40)
    ]
    assert "step 30 of 40" in steadfast("status", small, "--local", "--run", "first").output
    refused(steadfast("status", small, "--local", "--run", "other"), 2, "no run other")


def test_a_report_of_no_run_names_the_runs(home: Path, small: Path) -> None:
    run_of(home, "first")
    refused(steadfast("report", small, "--local", "--run", "other"), 2, "no run other", "first")
    refused(steadfast("report", small, "--local", "--run", "first"), 2, "no records")


def test_errors_as_json_are_one_object(small: Path) -> None:
    result = steadfast("submit", small, "--local", "--run", "r", "--steps", 0, "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"]) == (2, 2)
    assert "--steps: 0 is below 1" in error["details"]


def control_of(
    home: Path, simulator: Callable[..., Any], *, faults: bool, steps: int = 30, **config: object
) -> None:
    """A whole run `control`, as it lies in the run directory."""
    run_of(home, "control", **config)
    sim = simulator()
    sim.launch()
    sim.processes()
    sim.open(0)
    if faults:
        sim.fault("slow_rank")
    sim.steps(steps)
    sim.finish()
    events = home / "state" / "small" / "fsx" / "runs" / "control" / "events"
    events.mkdir()
    (events / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sim.rows))


def with_control(small: Path) -> Result:
    """Refused in any case, for the steps, but after the control run was looked at."""
    return steadfast("submit", small, "--local", "--run", "r", "--control", "control", "--steps", 0)


def test_a_control_run_is_taken(home: Path, small: Path, simulator: Callable[..., Any]) -> None:
    control_of(home, simulator, faults=False)
    refused(with_control(small), 2, "--steps: 0 is below 1")


def test_a_run_that_is_no_control_run_is_refused(home: Path, small: Path, simulator: Callable[..., Any]) -> None:
    control_of(home, simulator, faults=True, steps=10, micro_batch_size=2)
    words = (
        "run control is no control run",
        "not undisturbed",
        "(f1)",
        "loop.micro_batch_size: it had 2",
        "too few",
    )
    refused(with_control(small), 2, *words)


def test_a_run_that_ended_early_is_no_control_run(home: Path, small: Path, simulator: Callable[..., Any]) -> None:
    control_of(home, simulator, faults=False)
    small.write_text(GOOD.replace("nodes: 2", "nodes: 1"))
    info = home / "state" / "small" / "fsx" / "runs" / "control" / "run.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "world_size": 2}))
    events = info.parent / "events" / "all.jsonl"
    events.write_text("".join(line for line in events.read_text().splitlines(True) if '"final"' not in line))
    refused(with_control(small), 2, "it had 2 ranks, and this run has 1", "not reached its target")


def test_verification_names_planned_faults_that_never_struck(
    home: Path, small: Path, simulator: Callable[..., Any]
) -> None:
    control_of(home, simulator, faults=False, steps=40)
    info = home / "state" / "small" / "fsx" / "runs" / "control" / "run.json"
    faults = [{"id": "never", "class": "sigkill", "rank": 1, "step": 7, "phase": "recovery"}]
    info.write_text(json.dumps({**json.loads(info.read_text()), "faults": faults}))
    result = steadfast("report", small, "--local", "--run", "control", "--verify")
    assert result.exit_code == 0, result.output
    assert "fault never (sigkill, rank 1, step 7, phase recovery) did not strike: no other fault" in result.output


def test_destroy_and_deploy_ask_and_nobody_answers(small: Path, home: Path) -> None:
    refused(steadfast("deploy", small), 2, "USD", "no terminal", "--yes")
    nothing_created(home)


def test_synthesis_into_a_folder_that_takes_no_files(home: Path, small: Path) -> None:
    (home / "file").touch()
    for folder, why in ((home / "file" / "out", "Not a directory"), (Path("/proc/nothing"), "No such file")):
        refused(steadfast("synth", small, "--out", folder), 2, f"--out: {folder}: {why}", "may write to")


def test_a_second_deployment_is_told_of_the_first(small: Path, home: Path) -> None:
    with deploy_lock(Call.of(str(small))):
        for verb in ("deploy", "destroy"):
            refused(
                steadfast(verb, small, "--local", "--yes"), 3, "deployed or destroyed", f"process {os.getpid()}"
            )
    assert [path.name for path in (home / "state" / "small").iterdir()] == ["deploy.lock"]


def test_a_data_set_without_shards(home: Path, small: Path) -> None:
    (home / "data" / "train").mkdir(parents=True)
    (home / "data" / "train" / "index.json").write_text('{"shards": [{"file": "a.bin"}]}')
    refused(steadfast("data", "put", small, home / "data"), 2, "a.bin", "eval", "not a data set")
    refused(steadfast("data", "put", small, home / "none"), 2, "not a folder")


def test_scaling_beyond_the_file(small: Path) -> None:
    refused(steadfast("scale", small, 3), 2, "3 is more than nodes and spares")


def test_every_verb_shows_a_worked_example() -> None:
    listed = steadfast("--help").output
    verbs = (
        "init check synth deploy scale connect submit list status logs stop report archive destroy inventory clone"
    )
    for verb in [*verbs.split(), "price", "demo"]:
        assert verb in listed
        assert f"steadfast {verb}" in steadfast(verb, "--help").output
    for verb in ("image build", "image push", "data put", "node release"):
        assert f"steadfast {verb}" in steadfast(*verb.split(), "--help").output


def test_init_writes_a_file_that_is_valid_and_leaves_others(home: Path) -> None:
    made = steadfast("init", "fresh", "--folder", home)
    assert made.exit_code == 0, made.output
    assert steadfast("price", home / "fresh.yaml").exit_code == 0
    refused(steadfast("init", "fresh", "--folder", home), 3, "exists")
    refused(steadfast("init", "Not OK", "--folder", home), 2, "Not OK")


def test_clone_keeps_comments_and_sets_fields(home: Path, small: Path) -> None:
    small.write_text("# ours\n" + GOOD)
    cloned = steadfast(
        "clone", small, "big", "--set", "nodes=4", "--set", "training.loop.steps=80", "--folder", home
    )
    assert cloned.exit_code == 0, cloned.output
    text = (home / "big.yaml").read_text()
    assert "# ours" in text and "nodes: 4" in text and "name: big" in text and "80" in text
    assert small.read_text() == "# ours\n" + GOOD


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("nodes", ("key=value",)),
        ("nodes=none", ("nodes",)),
        ("nods=3", ("nods",)),
        ("nodes.x=1", ("holds no fields",)),
    ],
)
def test_a_clone_with_a_wrong_setting_writes_nothing(
    home: Path, small: Path, setting: str, words: tuple[str, ...]
) -> None:
    refused(steadfast("clone", small, "big", "--set", setting, "--folder", home), 2, *words)
    assert not (home / "big.yaml").exists()


def test_price_as_json_adds_up(small: Path) -> None:
    data = json.loads(steadfast("price", small, "--json").stdout)
    lines = [line["usd_per_hour"] or 0 for line in data["lines"]]
    assert sum(lines) == pytest.approx(data["deployed_usd_per_hour"] + data["nodes_usd_per_hour"])
    assert data["nodes_usd_per_hour"] == pytest.approx(2 * 6.88)
