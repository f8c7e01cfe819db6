"""Jobs that a scheduler starts: Slurm by submitit, whose local twin is real, and Ray, where it is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.processes import below

from rlrun.config import compose
from rlrun.config.expansion import Job
from rlrun.core import cluster
from rlrun.core.errors import ConfigError, RequestError, installing
from rlrun.runs import progress as watching
from rlrun.runs.directory import RunDir
from rlrun.sweep import children, coordinator, remote
from rlrun.sweep.coordinator import Coordinator, Limits
from rlrun.sweep.job_store import Entry, JobStore
from rlrun.sweep.local import Tasks
from rlrun.sweep.remote import LATE, RemoteRunner
from rlrun.sweep.slurm import Slurm
from rlrun.sweep.sweeping import Means, apart, recalled

from .conftest import EpisodeEnd
from .test_sweeps import FAILS, TINY, entries, start, until

SLOW = (*TINY, "env.target=fails.Fails", "+env.kwargs.pause=0.01", "seed=0", "--sweep-dir", "s")
HERE = ("launcher=slurm", "launcher.cluster=local")
PAGE = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray")


def entry(key, overrides=()):
    return Entry(key, f"seed={key}", tuple(overrides), "running", None, 0, None, None)


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

    outcome = rlrun("resume", "s")
    assert (outcome.returncode, outcome.stdout.splitlines()[0]) == (0, "1 job: 1 completed")
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
    outcome = rlrun("resume", "s", "launcher=local", "--trust", "fails")
    assert outcome.returncode == 0, outcome.stderr
    assert len(resumed()) == 1
    assert resumed()[0] is not None


def test_a_ray_of_this_machine_is_one_whatever_the_variables_say(monkeypatch):
    options = {}
    ray = SimpleNamespace(is_initialized=lambda: False, init=lambda **kwargs: options.update(kwargs))
    monkeypatch.setattr(importlib, "import_module", lambda name: ray)
    assert cluster.connect() == (ray, True)
    assert (options["address"], options["_node_ip_address"]) == ("local", "127.0.0.1")  # None is RAY_ADDRESS to Ray


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["launcher=slurm"], "needs the commands sbatch, srun, scancel, and this machine lacks them"),
        pytest.param(["launcher=ray", "launcher.address=127.0.0.1:1"], "nobody answers there", marks=RAY),
        (["launcher=slurm", "launcher.cluster=lokal"], "one of slurm, local, got 'lokal' (did you mean 'local'?)"),
    ],
)
def test_where_jobs_cannot_be_submitted_nothing_is_made(overrides, told, project, rlrun, monkeypatch):
    monkeypatch.setenv("PATH", "")
    outcome = rlrun("train", "-m", *TINY, "seed=0", "--sweep-dir", "s", *overrides)
    assert (outcome.returncode, outcome.stderr.count("\n")) == (2, 1)
    assert told in outcome.stderr
    assert list(project.iterdir()) == []


@pytest.mark.parametrize(("launcher", "package", "extra"), [("slurm", "submitit", "slurm"), ("ray", "ray", "ray")])
def test_a_missing_package_is_named_before_anything_is_made(launcher, package, extra, project, rlrun, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    outcome = rlrun("train", "-m", *TINY, "seed=0", "--sweep-dir", "s", f"launcher={launcher}")
    assert outcome == EpisodeEnd(
        2,
        "",
        f"rlrun: launcher={launcher} needs the package '{package}', which is not installed: {installing(extra)}\n",
    )
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
    jobs = [slurm.start(entry("a", ["threads=3"]), 0), slurm.start(entry("b"), 1)]
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


def test_a_job_is_heard_of_by_its_markers(played):
    _, (first, second), look = submitted(played)
    assert (first.waits(), second.waits()) == (True, True)
    first.runner.marker("begun").touch()
    assert look() is None
    assert (first.waits(), second.waits()) == (False, True)
    first.runner.marker("ended.2").touch()
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
    assert outcome.returncode == 2
    assert "rlrun: launcher=slurm: the jobs cannot be submitted: " in outcome.stderr
    assert "invalid partition" in outcome.stderr


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
    assert {path.name for path in project.iterdir()} == {f"a-1.{override}", "a-1.ended.75"}


SENT, CAME = "7_0_submitted.pkl", "7_0_0_result.pkl"


def test_launches_stay_once_jobs_are_added(tmp_path, monkeypatch):
    folder, job_store = tmp_path / "launches" / "one", JobStore(tmp_path / "jobs.sqlite")
    folder.mkdir(parents=True)
    (folder / "1_submitted.pkl").touch()  # its result is awaited
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: job_store.add([Job("a", ("seed=1",), "a")]))
    remote.remove_launches(tmp_path / "launches", job_store)
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("names", "state", "kept"),
    [
        ((SENT, CAME), "completed", False),
        ((SENT, CAME, "7_1_submitted.pkl"), "completed", False),  # a queued job that starts later has nothing to do
        ((), "completed", False),
        ((SENT, CAME), "failed", True),  # it may show why
        ((SENT, CAME), "pending", True),
    ],
)
def test_launches_are_removed_with_completion(names, state, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "LATE", 0.1)
    folder, job_store = tmp_path / "launches" / "one", JobStore(tmp_path / "jobs.sqlite")
    job_store.add([Job("a", (), "")])
    job_store.claim("me")
    job_store.end("me", "a", state, code=0)
    (folder / "notes").mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "launches" / "link").symlink_to(tmp_path / "elsewhere")
    remote.remove_launches(tmp_path / "launches", job_store)
    assert folder.exists() == kept
    assert (tmp_path / "elsewhere").is_dir()


def test_last_result_of_a_launch_is_awaited(tmp_path):
    folder = tmp_path / "launches" / "one"
    folder.mkdir(parents=True)
    (folder / SENT).touch()
    written = []
    late = threading.Timer(0.2, lambda: written.append((folder / CAME).touch()))
    late.start()
    remote.remove_launches(tmp_path / "launches", JobStore(tmp_path / "jobs.sqlite"))
    assert written == [None]
    assert not folder.exists()
    late.join()


class Queue:
    """A launcher whose jobs wait, and then have ended."""

    def __init__(self, seconds):
        self.until = time.monotonic() + seconds

    def start(self, entry, slot):
        return self

    def waits(self):
        return time.monotonic() < self.until

    def poll(self):
        return None if self.waits() else 0

    def kill(self):
        raise AssertionError("a job that waits is not hung")


def test_a_job_that_waits_is_not_hung_and_shown_as_queued(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "SILENT", 0.2)
    monkeypatch.setattr(coordinator, "is_completed", lambda run, overrides: time.monotonic() > end)
    end = time.monotonic() + 3.0  # its files may take a moment more than its exit code
    shown, job_store = [], JobStore(tmp_path / "jobs.sqlite")
    job_store.add([Job("a", (), "")])
    queue = Coordinator(
        tmp_path,
        job_store,
        Queue(1.5),
        workers=1,
        limits=Limits(stall=0.2),
        show=lambda jobs: shown.append(jobs[0].state),
    )
    assert queue.run() == 0
    assert shown[0] == "queued"
    assert shown[-1] == "completed"


class Refuses:
    """A launcher that starts nothing."""

    def start(self, entry, slot):
        raise OSError("no room")


@pytest.mark.parametrize(
    ("status", "overrides", "state"),
    [
        ("running", ["stop.env_steps=300"], "pending"),  # another process works on it
        ("completed", ["stop.env_steps=300"], "completed"),
        ("completed", ["stop.env_steps=300", "log.every=7"], "failed"),  # to be resumed, for which there is no room
        ("completed", ["stop.env_steps=400"], "failed"),
        ("stopped", ["stop.env_steps=300"], "failed"),
        ("failed", [], "failed"),
    ],
)
def test_only_unfinished_jobs_are_started(status, overrides, state, tmp_path):
    run, job_store = RunDir(tmp_path / "jobs" / "a"), JobStore(tmp_path / "jobs.sqlite")
    run.path.mkdir(parents=True)
    run.write_status(status)
    run.status.write_text(json.dumps({**json.loads(run.status.read_text()), "host": "elsewhere"}))
    run.overrides.write_text("algorithm=dqn\nstop.env_steps=300\n")
    run.summary.write_text(json.dumps({"status": status, "stopped_by": "env_steps", "env_steps": 300}))
    job_store.add([Job("a", ("algorithm=dqn", *overrides), "")])
    runner = Coordinator(tmp_path, job_store, Refuses(), workers=1, limits=Limits(), show=lambda entries: None)
    runner._begin(job_store.claim(runner.owner), 0)
    assert [entry.state for entry in job_store.entries()] == [state]
    assert job_store.claim("other") is None


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


@pytest.mark.parametrize("line", re.findall(r"^    rlrun train -m (.*launcher=.*)$", PAGE, re.MULTILINE))
def test_commands_in_the_page_name_what_there_is(line, project):
    overrides, own = apart(shlex.split(line))
    assert callable(Means(own).launcher())
    assert compose([override for override in overrides if not override.startswith("seed=")]).config.seed >= 0
