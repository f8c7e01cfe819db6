"""Whole sweeps, of real processes."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.identical import compare
from tests.processes import kill_all

from rlrun.config.expansion import Job
from rlrun.runs.directory import RunDir
from rlrun.sweep import sweeping
from rlrun.sweep.job_store import JobStore
from rlrun.sweep.sweeping import is_sweep, sweep

TINY = (
    *("algorithm=dqn", "env.target=rlrun.env.toys.Bandit", "memory.length=500", "algorithm.hidden=[8]"),
    *("algorithm.warmup_steps=50", "algorithm.batch_size=8", "algorithm.updates_per_step=0.5", "logger=[]"),
    *("evaluation.every=0", "stop.env_steps=300", "checkpoint.every=100"),
)
FAILS = """
import ctypes, os, signal, time
from rlrun.env.toys import Bandit

class Fails(Bandit):
    def __init__(self, how="not", pause=0.0):
        super().__init__()
        self.how, self.pause, self.count = how, pause, 0

    def step(self, action):
        self.count += 1
        time.sleep(self.pause)
        if self.count == 120 and not os.path.exists("mended"):
            time.sleep(1.0)  # the checkpoint of step 100 is written beside training
            if self.how == "raises":
                raise ValueError("the arm broke")
            if self.how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "leaves":
                os._exit(0)
            if self.how == "leaves from C":
                ctypes.CDLL(None)._exit(0)
            if self.how == "hangs":
                time.sleep(1_000)
        return super().step(action)
"""


def start(*overrides, **options):
    """Run a command in a process of its own, which says nothing unless it is asked to."""
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    return subprocess.Popen([sys.executable, "-m", "rlrun", *overrides], text=True, **streams)


def entries(folder):
    return JobStore(Path(folder) / "jobs.sqlite").entries()


def states(folder):
    return {entry.label: entry.state for entry in entries(folder)}


def summary(folder, key):
    return json.loads((Path(folder) / "jobs" / key / "summary.json").read_text())


def until(ready, seconds=60.0):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def test_a_dry_run_lists_the_jobs_and_makes_nothing(project, rlrun):
    done = rlrun("train", "-m", *TINY, "seed=0,1", "--dry-run")
    assert done.code == 0
    assert done.err == "2 jobs\n"
    assert [line.split()[1] for line in done.out.splitlines()] == ["seed", "0", "1"]
    assert list(project.iterdir()) == []


def test_jobs_are_what_single_runs_are_and_more_values_and_budget_are_added(project, rlrun):
    done = rlrun("train", "-m", *TINY, "seed=0,1", "--workers", "2")
    assert done.code == 0, done.err
    first, folder = done.out.splitlines()  # what scripts read
    assert first == "2 jobs: 2 completed"
    assert is_sweep(Path(folder))
    assert Path(folder).parent == project / "sweeps"
    assert rlrun("train", *TINY, "seed=1", "--run-dir", "alone").code == 0
    key = next(entry.key for entry in entries(folder) if entry.label == "seed=1")
    assert all(compare(project / "alone", Path(folder) / "jobs" / key).values())
    before = (Path(folder) / "jobs" / key / "status.json").stat().st_mtime_ns

    more = rlrun("train", "-m", *TINY, "seed=range(3)", "--sweep-dir", folder)
    assert more.out.splitlines()[0] == "3 jobs: 3 completed"
    assert (Path(folder) / "jobs" / key / "status.json").stat().st_mtime_ns == before  # nobody touched it

    longer = rlrun("train", "-m", *TINY, "seed=range(3)", "stop.env_steps=400", "--sweep-dir", folder)
    assert longer.out.splitlines()[0] == "3 jobs: 3 completed"
    assert {summary(folder, entry.key)["env_steps"] for entry in entries(folder)} == {400}
    about = json.loads((Path(folder) / "jobs" / key / "manifest.json").read_text())
    assert [record["checkpoint"] for record in about["resumed"]] == ["0000000300-0000000125"]


def test_a_sweep_names_its_preset_and_each_jobs_return(project, rlrun):
    overrides = [
        override for override in TINY if not override.startswith(("env.", "algorithm.hidden", "logger", "evaluation"))
    ]
    done = rlrun("train", "-m", *overrides, "env=cartpole", "evaluation.every=300", "evaluation.episodes=1", "seed=0,1")
    assert done.code == 0, done.err
    preset, *lines = done.err.splitlines()
    assert preset == "preset: dqn_cartpole (tuned for this algorithm and environment; preset=null for none)"
    returns = [line.partition(", return ")[2].split(",")[0] for line in lines if ": completed" in line]
    head, *table = [line.split() for line in lines[-3:]]
    assert head == ["job", "overrides", "state", "steps", "return", "why"]
    assert [cells[1:4] for cells in table] == [[f"seed={seed}", "completed", "300"] for seed in (0, 1)]
    assert sorted(cells[4] for cells in table) == sorted(returns)
    assert all(float(value) > 0.0 for value in returns)


def test_killed_twice_every_job_ends_once_and_as_if_it_had_not_been(project, rlrun):
    overrides = [*TINY, "stop.env_steps=600", "seed=range(3)"]
    assert rlrun("train", "-m", *overrides, "--workers", "2", "--sweep-dir", "whole").code == 0
    for begun, command in ((1, ["train", "-m", *overrides, "--sweep-dir", "killed"]), (2, ["resume", "killed"])):
        process = start(*command, "--workers", "2")
        until(lambda begun=begun: [_newest(run) > 0 for run in _runs("killed")].count(True) >= begun)
        kill_all(process)
    assert rlrun("resume", "killed", "--workers", "2").code == 0
    jobs = entries("killed")
    assert [entry.state for entry in jobs] == ["completed"] * 3
    for entry in jobs:
        assert all(compare(Path("whole/jobs") / entry.key, Path("killed/jobs") / entry.key).values())
    manifests = [json.loads((run / "manifest.json").read_text()) for run in _runs("killed")]
    assert any(record["checkpoint"] is not None for about in manifests for record in about.get("resumed", []))


def _runs(folder):
    return list(Path(folder, "jobs").glob("*"))


def _newest(run):
    return max((int(path.name.split("-")[0]) for path in RunDir(run).checkpoint_dirs()), default=-1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGKILL, -signal.SIGKILL)])
def test_jobs_leave_in_order_with_their_coordinator(number, code, project):
    overrides = [*TINY, "stop.env_steps=1_000_000", "seed=0,1", "--workers", "2", "--sweep-dir", "s"]
    process = start("train", "-m", *overrides, stdout=subprocess.PIPE)
    until(lambda: len([run for run in _runs("s") if _newest(run) > 0]) == 2)
    process.send_signal(number)
    assert process.wait(20) == code
    if code == 75:  # it has waited for them
        assert process.stdout.read().splitlines()[0] == "2 jobs: 2 pending"
    until(
        lambda: {RunDir(run).read_status()["status"] for run in _runs("s")} == {"stopped"}, 0.0 if code == 75 else 20.0
    )


def test_failures_are_shown_at_once_with_their_last_line_and_the_rest_goes_on(project, rlrun):
    (project / "fails.py").write_text(FAILS)
    how = "+env.kwargs.how='raises','is killed','hangs','not',leaves,'leaves from C'"
    overrides = [*TINY, "env.target=fails.Fails", how, "checkpoint.every=50", "env.vectorization=sync"]
    done = rlrun("train", "-m", *overrides, "--sweep-dir", "s", "--workers", "5", "--stall", "10")
    assert done.code == 1
    errors = {entry.label.split("=")[1].strip("'"): entry.error for entry in entries("s")}
    assert "ValueError: the arm broke" in errors["raises"]
    assert errors["is killed"] == "killed by SIGKILL: by hand, or for want of memory"
    assert errors["hangs"].startswith("no progress for ")
    assert errors["leaves"].endswith(" in step called os._exit(0) before the work was complete")
    assert errors["leaves from C"] == "its process left with exit code 0 before the run was completed"
    assert errors["not"] is None
    for error in filter(None, errors.values()):
        assert f": failed: {error}\n" in done.err

    (project / "mended").touch()
    again = rlrun("resume", "s", "--retry-failed", "--workers", "4")
    assert (again.code, again.out.splitlines()[0]) == (0, "6 jobs: 6 completed"), again.err
    manifests = [json.loads((run / "manifest.json").read_text()) for run in _runs("s")]
    resumed = [record["checkpoint"] for about in manifests for record in about.get("resumed", [])]
    assert resumed == ["0000000100-0000000025"] * 5


@pytest.mark.parametrize(("option", "pending"), [(["--fail-fast"], 3), (["--max-failures", "2"], 2)])
def test_a_sweep_gives_up_after_so_many_failures(option, pending, project, rlrun):
    (project / "fails.py").write_text(FAILS)
    overrides = [*TINY, "env.target=fails.Fails", "+env.kwargs.how=raises", "seed=range(4)"]
    done = rlrun("train", "-m", *overrides, "--sweep-dir", "s", "--workers", "1", *option)
    assert done.code == 1
    assert [entry.state for entry in entries("s")].count("pending") == pending


def test_two_coordinators_share_the_jobs(project, rlrun):
    overrides = ["train", "-m", *TINY, "seed=range(4)", "--sweep-dir", "s", "--workers", "1"]
    other = start(*overrides, stderr=subprocess.PIPE)
    until(lambda: "running" in states("s").values() if is_sweep(Path("s")) else False)
    outputs = rlrun(*overrides).err, other.communicate(timeout=150)[1]
    assert other.returncode == 0
    until(lambda: set(states("s").values()) == {"completed"})
    assert {log.read_text().count("completed:") for log in Path("s/logs").glob("*.txt")} == {1}
    for run in _runs("s"):
        assert "resumed" not in json.loads((run / "manifest.json").read_text()), outputs


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["train", "-m", "algorithm=dqn", "env=cartpole", "--run-dir", "r"], "--sweep-dir names the folder of a sweep"),
        (["train", "-m", "algorithm=dqn", "env=cartpole", "--from", "r"], "--from is for a single run"),
        (["train", "-m", "algorithm=dqn", "env=cartpole", "seed=a,b"], "seed=a: seed: "),
        (["train", "-m", "algorithm=dqn", "env=cartpole", "--sweep-dir", "full"], "is not empty, and no sweep"),
        (["train", "algorithm=dqn", "env=cartpole", "seed=1,2"], "-m"),
        (["train", "algorithm=dqn", "env=cartpole", "--workers", "2"], "--workers is for a sweep of several runs"),
        (["train", "algorithm=dqn", "env=cartpole", "--launcher", "ray"], "--launcher is for a sweep of several runs"),
        (["train", "-m", "algorithm=dqn", "env=cartpole", "--launcher", "lokal"], "did you mean 'local'"),
        (["resume", "full", "--retry-failed"], "--retry-failed is for a sweep, and full is none"),
    ],
)
def test_wrong_requests_make_nothing(overrides, message, project, rlrun):
    (project / "full").mkdir()
    (project / "full" / "file").touch()
    done = rlrun(*overrides)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert [path.name for path in project.rglob("*")] == ["full", "file"]


def test_a_sweep_that_was_cut_off_before_it_had_its_jobs_is_none(project, monkeypatch):
    def cut(job_store, jobs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(JobStore, "add", cut)
        with pytest.raises(KeyboardInterrupt):
            sweep([Job("a", (), "")], folder=Path("s"))
    assert not is_sweep(Path("s"))
    sweep([], folder=Path("s"))  # the same command goes on
    assert is_sweep(Path("s"))


def test_of_two_sweeps_that_begin_at_once_each_has_its_folder(project):
    assert sweeping._make(project / "s")
    assert not sweeping._make(project / "s")


def insert(key, overrides, label="seed=1", subdir=None):
    with sqlite3.connect("s/jobs.sqlite") as job_store:
        values = key, label, overrides, subdir
        job_store.execute("INSERT INTO jobs (key, label, words, subdir) VALUES (?, ?, ?, ?)", values)


def test_a_job_whose_config_is_another_by_now_is_not_run(project, rlrun):
    assert rlrun("train", "-m", *TINY, "seed=0", "--sweep-dir", "s").code == 0
    insert("0123456789ab", json.dumps([*TINY, "seed=1"]))
    assert rlrun("resume", "s", "--trust").code == 1
    assert entries("s")[-1].error.startswith("these overrides make another config than when the sweep began")
    assert not Path("s/jobs/0123456789ab").exists()


@pytest.mark.parametrize(
    "row",
    [
        *(("../../out", "[]", "x"), ("a", "no list", "x"), ("a", "[1]", "x"), ("a", "[]", b"\x00"), ("", "[]", "x")),
        *(("a", "[]", "x", subdir) for subdir in ("../out", "/out", "x/../../out", "logs/x", "jobs.sqlite", b"x", ".")),
    ],
)
def test_rows_that_no_coordinator_wrote_are_refused(row, foreign, rlrun):
    JobStore(foreign / "jobs.sqlite")
    insert(*row)
    outcome = rlrun("resume", "s")
    assert outcome.code == 2
    assert "jobs.sqlite is damaged: it lists a job that is none" in outcome.err
    assert outcome.err.count("\n") == 1


def test_what_is_printed_of_a_foreign_sweep_steers_no_terminal(foreign, rlrun):
    JobStore(foreign / "jobs.sqlite")
    insert("a", json.dumps(["algorithm=dqn", "env=cartpole"]), "\x1b[2Jseed=1")
    assert "\x1b" not in rlrun("resume", "s", "--trust").err
