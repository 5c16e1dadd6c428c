"""The pod's entry, around small programs that stand where ft_launcher is."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer import launch
from trainer.config import TrainConfig
from trainer.events import read_ledger
from trainer.exit_codes import ExitCode
from trainer.paths import PodContext, RunPaths
from trainer.resilience import progress, verdict

pytestmark = pytest.mark.unit


@pytest.fixture
def context(tmp_path: Path) -> PodContext:
    paths = RunPaths(tmp_path / "run")
    paths.make()
    return PodContext(
        run="run",
        paths=paths,
        data=tmp_path,
        shm=tmp_path / "shm",
        pod="run-1-0",
        pod_ip="127.0.0.1",
        node="n0",
        config_json="{}",
        faults_json="[]",
    )


@pytest.fixture
def store() -> Iterator[int]:
    """Something that listens where the rendezvous store would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


Conclude = Callable[..., launch.Conclusion]
SAYS_THAT_IT_RAN = "open(RUN + '/ran', 'a').write('x')"


@pytest.fixture
def no_store(store: int, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until the event is set, nobody listens."""
    there = threading.Event()
    monkeypatch.setattr(launch.store_watch, "reachable", lambda endpoint: there.is_set())
    return there


@pytest.fixture
def conclude(context: PodContext, store: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Conclude]:
    """Runs `program` in ft_launcher's place and gives the conclusion."""
    before = signal.getsignal(signal.SIGTERM)

    def run(program: str, *, steps: int = 10, gang_restarts: int = 1) -> launch.Conclusion:
        script = context.paths.root / "program.py"
        script.write_text("RUN = " + repr(str(context.paths.root)) + "\n" + textwrap.dedent(program))
        monkeypatch.setattr(launch, "LAUNCHER", (sys.executable, str(script)))
        config = TrainConfig.model_validate(
            {"loop": {"steps": steps}, "recovery": {"gang_restarts": gang_restarts}}
        )
        return launch.Launch(context, config, ["--rdzv-endpoint", f"127.0.0.1:{store}"]).run()

    yield run
    signal.signal(signal.SIGTERM, before)


COMPLETE = "import json, pathlib; pathlib.Path(RUN, 'complete.json').write_text(json.dumps({'step': %d}))"


def test_zero_only_because_of_the_completion_record(conclude: Conclude) -> None:
    assert conclude(COMPLETE % 10).code is ExitCode.TARGET_REACHED


def test_a_launcher_that_ends_with_zero_before_the_target_is_a_failure(conclude: Conclude) -> None:
    assert conclude("pass").code is ExitCode.FAILED
    assert conclude(COMPLETE % 9).code is ExitCode.FAILED


def leave(context: PodContext, code: ExitCode, *, whole_job: bool = True) -> None:
    word = verdict.Verdict(code, "because", rank=1, step=7, attempt=2, whole_job=whole_job)
    verdict.leave(word, [context.paths.verdicts, context.shm / "verdicts"], context.pod)


LEAVE = """
import json, pathlib, sys
word = {"code": %d, "reason": "because", "rank": 1, "step": 7, "attempt": 2, "whole_job": True}
pathlib.Path(RUN, "verdicts/job.json").write_text(json.dumps(word))
sys.exit(1)
"""


@pytest.mark.parametrize("code", [ExitCode.SAVES_FAIL, ExitCode.PLANNED_STOP, ExitCode.NO_PROGRESS])
def test_a_ranks_verdict_becomes_the_exit_code(conclude: Conclude, code: ExitCode) -> None:
    conclusion = conclude(LEAVE % code)
    assert conclusion.code is code and "rank 1, step 7, attempt 2" in conclusion.reason


def test_a_verdict_of_an_earlier_start_counts_for_nothing(conclude: Conclude, context: PodContext) -> None:
    leave(context, ExitCode.PLANNED_STOP)
    time.sleep(0.02)
    assert conclude("import sys; sys.exit(1)").code is ExitCode.FAILED


def test_own_pods_verdict_comes_before_the_jobs(context: PodContext) -> None:
    leave(context, ExitCode.PLANNED_STOP)
    leave(context, ExitCode.BAD_NODE, whole_job=False)
    found = verdict.find([context.paths.verdicts], context.pod, newer_than_ns={})
    other = verdict.find([context.paths.verdicts], "run-1-1", newer_than_ns={})
    assert found and found.code is ExitCode.BAD_NODE
    assert other and other.code is ExitCode.PLANNED_STOP


def test_shared_memory_keeps_a_verdict_that_storage_refuses(context: PodContext) -> None:
    word = verdict.Verdict(ExitCode.SAVES_FAIL, "no space", 0, 3, 1)
    verdict.leave(word, [Path("/proc/nowhere"), context.shm / "verdicts"], context.pod)
    assert verdict.find([context.shm / "verdicts"], context.pod, newer_than_ns={}) == word


@pytest.mark.parametrize("text", ["{}", "[]", "null", "{", '{"code": 7}', '{"code": 90, "surplus": 1}'])
def test_what_cannot_be_understood_is_no_verdict(context: PodContext, text: str) -> None:
    (context.paths.verdicts / "job.json").write_text(text)
    assert verdict.find([context.paths.verdicts], context.pod, newer_than_ns={}) is None
    leave(context, ExitCode.BAD_NODE, whole_job=False)
    (context.paths.verdicts / f"pod.{context.pod}.json").write_text(text)
    found = verdict.find([context.paths.verdicts, context.shm / "verdicts"], context.pod, newer_than_ns={})
    assert found and found.code is ExitCode.BAD_NODE


def test_launchers_own_no_progress_code(conclude: Conclude) -> None:
    assert conclude("import sys; sys.exit(93)").code is ExitCode.NO_PROGRESS


def test_a_lost_rendezvous_starts_the_launcher_again_in_the_same_pod(
    conclude: Conclude, context: PodContext
) -> None:
    program = """
        import json, pathlib, sys
        mark = pathlib.Path(RUN, "second")
        if not mark.exists():
            mark.touch()
            sys.exit(1)
        pathlib.Path(RUN, "complete.json").write_text(json.dumps({"step": 10}))
    """
    assert conclude(program).code is ExitCode.TARGET_REACHED
    events = [record["event"] for record in read_ledger(context.paths.events)]
    assert events.count("launch_started") == 2 and events.count("gang_restart") == 1


def test_gang_restarts_are_bounded(conclude: Conclude, context: PodContext) -> None:
    conclusion = conclude("import sys; sys.exit(1)", gang_restarts=2)
    assert conclusion.code is ExitCode.FAILED and "2 gang restarts" in conclusion.reason
    events = [record["event"] for record in read_ledger(context.paths.events)]
    assert events.count("launch_started") == 3 and events.count("gang_restart") == 2


def test_a_spare_told_to_stop_leaves_with_92(conclude: Conclude) -> None:
    program = """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("waiting", flush=True)
        time.sleep(20)
    """
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert conclude(program).code is ExitCode.PLANNED_STOP


@pytest.mark.parametrize(
    ("saved", "said"), [("", "from the beginning: nothing was saved yet"), ("30", "from step 30")]
)
def test_a_stop_outside_the_steps_is_a_planned_stop(
    conclude: Conclude, context: PodContext, saved: str, said: str
) -> None:
    """ft_launcher ends with 1, or by the signal, when its ranks were still starting and left no verdict."""
    if saved:
        context.paths.progress.write_text(saved)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    conclusion = conclude("import time; time.sleep(20)")
    assert conclusion.code is ExitCode.PLANNED_STOP and said in conclusion.reason


def test_a_stop_before_anything_was_started_is_one(context: PodContext) -> None:
    """`main` takes the signal before all else: as process 1 it would not get it without a handler."""
    starter = (
        "import os, signal; from trainer import launch; "
        "launch.PodContext.from_environment = lambda: os.kill(os.getpid(), signal.SIGTERM) or context; "
        "from trainer.paths import PodContext, RunPaths; from pathlib import Path; "
        f"root = Path({str(context.paths.root)!r}); "
        "context = PodContext('run', RunPaths(root), root, root / 'shm', 'p', '127.0.0.1', 'n', '{}', '[]'); "
        "raise SystemExit(launch.main(['--rdzv-endpoint', '127.0.0.1:9']))"
    )
    message = context.paths.root / "termination"
    ended = subprocess.run(
        [sys.executable, "-c", starter],
        env={**os.environ, "STEADFAST_TERMINATION_LOG": str(message)},
        timeout=60,
        check=False,
    )
    assert ended.returncode == ExitCode.PLANNED_STOP
    assert "told to stop" in message.read_text()


def test_after_the_planned_stop_no_ranks_are_started(
    conclude: Conclude, context: PodContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Job makes pods again and again, as 92 is not counted: they wait to be told to go."""
    monkeypatch.setenv("STEADFAST_STOP_AT", str(time.time() - 1))
    threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert conclude(SAYS_THAT_IT_RAN).code is ExitCode.PLANNED_STOP
    assert not (context.paths.root / "ran").exists()
    assert [r["event"] for r in read_ledger(context.paths.events)] == ["held"]
    progress.write_completion(context.paths, {"step": 10})
    assert conclude(SAYS_THAT_IT_RAN).code is ExitCode.TARGET_REACHED


def test_before_the_planned_stop_ranks_are_started(
    conclude: Conclude, context: PodContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEADFAST_STOP_AT", str(time.time() + 100))
    conclude(SAYS_THAT_IT_RAN)
    assert (context.paths.root / "ran").exists()


SAYS = """
import os, signal, sys
print("2026-11-30 07:03:12,501 [ERROR] [vm] [workload:?(?) infra:?(?)] launcher.py:3740 " + {words!r}, flush=True)
os.kill(os.getpid(), signal.SIGKILL) if {killed} else sys.exit(1)
"""


@pytest.mark.parametrize(
    "words",
    [
        "[default] Progress tracker detected no progress across restarts. No more restarts will be attempted.",
        "NVRx decided the job must not be restarted (no_progress): it says so. Agent's exit code = 93",
    ],
)
def test_what_the_launcher_decided_holds_when_the_closed_store_has_it_killed(
    conclude: Conclude, words: str
) -> None:
    assert conclude(SAYS.format(words=words, killed=True)).code is ExitCode.NO_PROGRESS


def test_nvrx_still_says_what_is_looked_for() -> None:
    (package,) = importlib.util.find_spec("nvidia_resiliency_ext").submodule_search_locations
    source = Path(package, "fault_tolerance", "launcher.py").read_text()  # its import takes seconds
    for words in (
        "No more restarts will be attempted.",
        "reported a no-restart decision",
        "NVRx decided the job must not be restarted",
        "Agent .run() raised UnhealthyNodeException: {e}",
    ):
        assert words in source


def test_a_node_that_nvrx_finds_unhealthy_is_left(conclude: Conclude, context: PodContext) -> None:
    words = "Agent .run() raised UnhealthyNodeException: Node n0 has an unhealthy GPU."
    conclusion = conclude(SAYS.format(words=words, killed=False), gang_restarts=3)
    assert conclusion.code is ExitCode.BAD_NODE and "unhealthy GPU" in conclusion.reason
    assert not [r for r in read_ledger(context.paths.events) if r["event"] == "gang_restart"]


def test_a_full_disk_neither_stops_the_launchers_output_nor_changes_the_conclusion(
    conclude: Conclude, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More output than a pipe holds, after a line for the ledger: unread, it has ft_launcher stand still."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(launch.Ledger, "write", full)
    program = """
        print("  - Cycle: 1 Event: failure_detected Node: x Rank: 0 Time: 2026-11-30 06:59:13.411 UTC", flush=True)
        for number in range(3000):
            print("step", number, "x" * 60, flush=True)
    """
    assert conclude(program + textwrap.indent(LEAVE % 90, "        ")).code is ExitCode.SAVES_FAIL


def test_a_node_without_storage_does_not_join(context: PodContext, conclude: Conclude) -> None:
    unwritable = context.paths.root / "run-file"
    unwritable.touch()
    broken = PodContext(**{**vars(context), "paths": RunPaths(unwritable)})
    assert "cannot be written" in launch.health.problems(broken)[0]


def test_a_node_that_must_not_join_says_so_before_anything_is_written(
    context: PodContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be made below a file, as root too: neither directories, nor a ledger, nor shared memory."""
    nowhere = tmp_path / "file"
    nowhere.touch()
    broken = PodContext(**{**vars(context), "paths": RunPaths(nowhere / "run"), "shm": nowhere / "shm"})
    monkeypatch.setattr(launch.PodContext, "from_environment", lambda: broken)
    monkeypatch.setenv("STEADFAST_TERMINATION_LOG", str(tmp_path / "termination"))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert launch.main(["--rdzv-endpoint", "127.0.0.1:9"]) == ExitCode.BAD_NODE
    finally:
        signal.signal(signal.SIGTERM, before)
    message = (tmp_path / "termination").read_text()
    assert "run cannot be written" in message and "shm cannot be used" in message


def test_launcher_events_reach_the_ledger(conclude: Conclude, context: PodContext) -> None:
    """The line is made by NVRx itself, so a change of its wording is noticed."""
    program = """
        import logging, sys
        logging.basicConfig(level=logging.INFO, stream=sys.stderr)
        from nvidia_resiliency_ext.shared_utils.profiling import ProfilingEvent, record_profiling_event
        record_profiling_event(ProfilingEvent.FAILURE_DETECTED, node_id="n0", rank=0)
    """
    conclude(program)
    (record,) = (r for r in read_ledger(context.paths.events) if r["event"] == "failure_detected")
    assert record["cycle"] == 1 and abs(record["at_wall_s"] - record["wall_s"]) < 5


def test_no_endpoint_is_a_message(context: PodContext) -> None:
    with pytest.raises(SystemExit, match="--rdzv-endpoint"):
        launch.Launch(context, TrainConfig(), ["--nnodes", "1"])


def test_ft_launcher_waits_for_the_store(
    conclude: Conclude, context: PodContext, no_store: threading.Event
) -> None:
    ran = context.paths.root / "ran"
    early: list[bool] = []

    def come() -> None:
        early.append(ran.exists())
        no_store.set()

    threading.Timer(0.6, come).start()
    conclude(SAYS_THAT_IT_RAN, gang_restarts=1)
    assert early == [False]
    assert ran.read_text() == "x"


def test_a_store_that_never_comes_uses_up_the_gang_restarts(
    conclude: Conclude, context: PodContext, no_store: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "STORE_WAIT_S", 0.3)
    assert conclude(SAYS_THAT_IT_RAN, gang_restarts=2).code is ExitCode.FAILED
    restarts = [r for r in read_ledger(context.paths.events) if r["event"] == "gang_restart"]
    assert [record["number"] for record in restarts] == [1, 2]
    assert all("no store at 127.0.0.1:" in record["reason"] for record in restarts)
    assert not (context.paths.root / "ran").exists()


def test_without_a_store_a_complete_run_is_complete(
    conclude: Conclude, context: PodContext, no_store: threading.Event
) -> None:
    progress.write_completion(context.paths, {"step": 10})
    assert conclude(SAYS_THAT_IT_RAN, steps=10).code is ExitCode.TARGET_REACHED


def test_without_a_store_a_stop_is_a_planned_stop(conclude: Conclude, no_store: threading.Event) -> None:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    assert conclude(SAYS_THAT_IT_RAN).code is ExitCode.PLANNED_STOP
