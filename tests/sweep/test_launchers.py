"""Jobs that a scheduler starts: Slurm by submitit, whose local twin is real, and Ray, where it is installed."""

import importlib.util
import json
import os
import pickle
import signal
import stat
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.processes import below

from rlrun.config.expansion import Job
from rlrun.core.errors import ConfigError, RequestError, installing
from rlrun.runs import cluster
from rlrun.runs import progress as watching
from rlrun.runs.directory import RunDir
from rlrun.sweep import children, remote
from rlrun.sweep.local import Tasks
from rlrun.sweep.remote import LATE, RemoteRunner
from rlrun.sweep.slurm import Slurm
from rlrun.sweep.sweeping import recalled

from .conftest import entry
from .test_sweeps import FAILS, TINY, entries, start, until

SLOW = (*TINY, "env.target=fails.Fails", "+env.kwargs.pause=0.01", "seed=0", "--sweep-dir", "s")
HERE = ("launcher=slurm", "launcher.cluster=local")
RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray")


def only_run():
    folders = list(Path("s/jobs").glob("*")) if Path("s/jobs").is_dir() else []
    return RunDir(folders[0]) if folders else None


def saved():
    run = only_run()
    return run is not None and len(run.checkpoint_dirs()) > 0


def resumed():
    return [record["checkpoint"] for record in json.loads(only_run().manifest.read_text()).get("resumed", [])]


@pytest.fixture
def begun(project):
    """Start a sweep of one job that takes some seconds, and wait until it has a checkpoint."""
    (project / "fails.py").write_text(FAILS)
    started = []

    def begin(*overrides):
        started.append(start("train", "-m", *SLOW, *overrides))
        until(saved)
        return started[-1]

    yield begin
    for process in started:
        process.kill()


@pytest.mark.timeout(200)
def test_a_job_outlives_its_coordinator_is_preempted_and_goes_on(begun, rlrun):
    process = begun(*HERE)
    process.kill()
    process.wait()
    (submitted,) = Path("s/launches").glob("*/*_submitted.pkl")
    controller = int(submitted.name.partition("_")[0])
    os.kill(below(controller)[1], signal.SIGUSR2)  # as Slurm does before it takes a machine away
    log = Path("s/logs", f"{only_run().path.name}.txt")
    until(lambda: "completed:" in log.read_text(), 120.0)
    assert len(resumed()) == 1
    assert resumed()[0] is not None
    until(lambda: list(Path("s/launches").glob("*/*_result.pkl")))

    outcome = rlrun("resume", "s")
    assert (outcome.code, outcome.out.splitlines()[0]) == (0, "1 job: 1 completed")
    assert log.read_text().count("completed:") == 1  # no process was started for it
    assert list(Path("s/launches").iterdir()) == []


@RAY
@pytest.mark.timeout(200)
def test_ray_stops_jobs_in_order_and_another_launcher_goes_on(begun, rlrun):
    process = begun("launcher=ray")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert only_run().read_status()["status"] == "stopped"
    assert [job.state for job in entries("s")] == ["pending"]
    outcome = rlrun("resume", "s", "launcher=local")
    assert outcome.code == 0, outcome.err
    assert len(resumed()) == 1
    assert resumed()[0] is not None


def test_a_ray_of_this_machine_is_one_whatever_the_variables_say(monkeypatch):
    options = {}
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **kwargs: options.update(kwargs))
    monkeypatch.setattr(importlib, "import_module", lambda name: ray)
    assert cluster.connect() == (ray, True)
    assert (options["address"], options["_node_ip_address"]) == ("local", "127.0.0.1")  # None is RAY_ADDRESS to Ray


@pytest.mark.parametrize(
    ("overrides", "absent", "message"),
    [
        (["launcher=slurm"], None, "needs the commands sbatch, srun, scancel, and this machine lacks them"),
        pytest.param(["launcher=ray", "launcher.address=127.0.0.1:1"], None, "nobody answers there", marks=RAY),
        (["launcher=slurm", "launcher.cluster=lokal"], None, "got 'lokal' (did you mean 'local'?)"),
        (["launcher=slurm"], "submitit", "the package 'submitit', which is not installed: " + installing("slurm")),
        (["launcher=ray"], "ray", "the package 'ray', which is not installed: " + installing("ray")),
    ],
)
def test_where_jobs_cannot_be_submitted_nothing_is_made(overrides, absent, message, project, rlrun, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else find(name))
    monkeypatch.setenv("PATH", "")
    outcome = rlrun("train", "-m", *TINY, "seed=0", "--sweep-dir", "s", *overrides)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert message in outcome.err
    assert list(project.iterdir()) == []


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Commands of Slurm that only write down what they are asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, does in {
        "sbatch": f'cp "$1" {tmp_path}/script; echo Submitted batch job 7',
        "scancel": f'echo "$@" >> {tmp_path}/cancelled',
        "sacct": f"cat {tmp_path}/states 2> /dev/null || true",
        "srun": "true",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    Slurm.require()
    return tmp_path


def submitted(place, **options):
    """Return a launcher and two jobs that it has submitted; and a function that looks at the first once more."""
    slurm = Slurm(Tasks(place), **options)
    jobs = [slurm.start(entry("a", overrides=["threads=3"]), 0), slurm.start(entry("b"), 1)]
    (place / "logs").mkdir()

    def look():
        slurm._next = 0.0
        return jobs[0].poll()

    assert look() is None
    return slurm, jobs, look


def test_jobs_are_one_array_with_what_was_asked_for(played):
    options = {"time": 90, "memory": 1.5, "gpus": 2, "partition": "long", "parallel": 1, "setup": ["module load x"]}
    slurm, jobs, _ = submitted(played, **options, sbatch={"mail-type": "END"}, signal_delay=45)
    script = (played / "script").read_text().splitlines()
    for line in (
        *("--array=0-1%1", "--time=90", "--mem=1536M", "--gpus-per-node=2", "--partition=long", "--requeue"),
        *("--cpus-per-task=3", "--mail-type=END", "--signal=USR2@45"),
    ):
        assert f"#SBATCH {line}" in script
    assert "module load x" in script
    assert [job.handle.job_id for job in jobs] == ["7_0", "7_1"]
    assert slurm.workers([entry(str(number)) for number in range(500)]) == 500


def test_a_search_has_to_say_how_many_jobs_slurm_has_at_a_time(played):
    with pytest.raises(RequestError, match="--workers N"):
        Slurm.require(endless=True)
    Slurm.require(endless=True, parallel=4)
    assert Slurm(Tasks(played), parallel=4).workers([entry("a")]) == 4


def test_a_job_is_heard_of_by_marker_and_result(played):
    _, (first, second), look = submitted(played)
    assert (first.waits(), second.waits()) == (True, True)
    first.runner.marker("begun").touch()
    assert look() is None
    assert (first.waits(), second.waits()) == (False, True)
    first.handle.paths.result_pickle.write_bytes(pickle.dumps(("success", 2)))
    assert look() == 2


def test_what_waits_is_cancelled_and_what_works_is_asked_to_leave(played):
    slurm, (first, second), look = submitted(played)
    first.runner.marker("begun").touch()
    look()
    first.terminate()
    second.terminate()
    assert look() is None
    assert second.poll() == 75
    assert (played / "cancelled").read_text() == "7_1\n"
    assert sorted(os.listdir(slurm.markers)) == [
        first.runner.marker("begun").name,
        first.runner.marker("leave").name,
        second.runner.marker("leave").name,
    ]


@pytest.mark.parametrize(
    ("overrides", "state", "code"),
    [([], "CANCELLED by 0", 1), (["begun"], "NODE_FAIL", 1), (["again"], "TIMEOUT", 75), (["begun"], "RUNNING", None)],
)
def test_a_job_that_slurm_has_no_more_ended_unless_it_was_saved(overrides, state, code, played, monkeypatch):
    _, (job, _), look = submitted(played)
    for override in overrides:
        job.runner.marker(override).touch()
    (played / "states").write_text(f"JobID|State|NodeList\n7_0|{state}|n\n7_1|PENDING|n\n")
    job.handle.watcher.clear()  # ask Slurm, whenever it was asked last
    now = time.monotonic()
    assert look() is None  # a note of its end may be on its way
    monkeypatch.setattr("time.monotonic", lambda: now + 2 * LATE)
    assert look() == code
    line = watching.last_line(played / "logs" / "a.txt")
    assert line == (f"Slurm no longer has it: {state.split()[0]}" if code == 1 else None)


def test_a_hung_remote_runner_is_ended_by_slurm(played, monkeypatch):
    _, (job, _), look = submitted(played)
    now = time.monotonic()
    job.kill()
    assert look() is None
    monkeypatch.setattr("time.monotonic", lambda: now + 60.0)
    assert look() == -signal.SIGKILL
    assert (played / "cancelled").read_text() == "7_0\n"


def test_what_slurm_refuses_is_told_in_a_line(played, project, rlrun):
    (played / "bin" / "sbatch").write_text("#!/bin/sh\necho sbatch: error: invalid partition >&2; exit 1\n")
    outcome = rlrun("train", "-m", *TINY, "seed=0,1", "--sweep-dir", "s", "launcher=slurm")
    assert outcome.code == 2
    assert "rlrun: launcher=slurm: the jobs cannot be submitted: " in outcome.err
    assert "invalid partition" in outcome.err


@pytest.fixture
def remote_runner(tmp_path):
    return RemoteRunner(Tasks(tmp_path).task(entry("a")), tmp_path, "a-1", tmp_path, command=tuple(sys.argv))


def test_a_job_that_saves_is_not_asked_again_when_its_machine_is_taken_away(remote_runner):
    calls = []
    remote_runner._child = SimpleNamespace(terminate=lambda: calls.append("once"), wait=lambda: 75)
    remote_runner._ask()  # as on SIGTERM
    again = remote_runner.checkpoint().function
    assert (again.job_id, again._child, again._leaving) == ("a-1", None, False)
    assert calls == ["once"]


@pytest.mark.parametrize("override", ["leave", "kill"])
def test_a_remote_runner_that_comes_too_late_starts_nothing(override, remote_runner, project, monkeypatch):
    monkeypatch.setattr(children, "start", None)
    remote_runner.marker(override).touch()
    assert remote_runner() == 75
    assert {path.name for path in project.iterdir()} == {f"a-1.{override}"}


@pytest.mark.parametrize(
    ("state", "kept"),
    [("completed", False), ("failed", True), ("pending", True)],  # those of a failed job may show why
)
def test_launches_are_removed_with_completion(state, kept, tmp_path, job_store):
    launch, elsewhere = tmp_path / "launches" / "one", tmp_path / "elsewhere"
    for folder in (launch / "notes", elsewhere):
        folder.mkdir(parents=True)
    launch.with_name("link").symlink_to(elsewhere)
    job_store.add([Job("a", (), "")])
    job_store.claim("me")
    job_store.end("me", "a", state, code=0)
    remote.remove_launches(launch.parent, job_store)
    assert (launch.exists(), elsewhere.is_dir()) == (kept, True)


@pytest.mark.parametrize(
    ("noted", "given", "expected"),
    [
        (["launcher=slurm", "launcher.time=90"], [], ["launcher=slurm", "launcher.time=90"]),
        (["launcher=slurm"], ["launcher=local"], ["launcher=local"]),
        (["launcher=ray"], ["sweep.trials=3"], ["launcher=ray", "sweep.trials=3"]),
        ([], [], []),
        ("launcher=slurm", [], []),
    ],
)
def test_the_launcher_is_remembered_unless_another_is_named(noted, given, expected, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"launcher": noted}))
    assert recalled(given, tmp_path / "sweep.json") == expected


@pytest.mark.parametrize(
    "override",
    [
        *("launcher.setup=[reboot]", "launcher.python=sh", "launcher.srun=[x]", "launcher.sbatch={wrap: x}"),
        *("launcher.partition=a\nreboot", "launcher._target_=os.system", "launcher.address=evil:1", "+launcher.x=1"),
        *("algorithm=sac", 3),
    ],
)
def test_what_is_code_or_a_place_has_to_be_typed_again(override, tmp_path):
    (tmp_path / "sweep.json").write_text(json.dumps({"launcher": ["launcher=slurm", override]}))
    with pytest.raises(ConfigError, match="type all overrides of the launcher again, or launcher=local"):
        recalled([], tmp_path / "sweep.json")
