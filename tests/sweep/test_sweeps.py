"""Whole sweeps, of real processes."""

import json
import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed.run
from tests.identical import compare
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from rlrun.config.expansion import Job
from rlrun.core import distributed
from rlrun.runs.directory import RunDir
from rlrun.sweep import scheduler, sweeping
from rlrun.sweep.command import call
from rlrun.sweep.directory import SweepDir
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
            time.sleep(0.3)  # the checkpoint of step 100 is written beside training
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


MINE = "# @package _global_\ndefaults: [/rlrun/algorithm/dqn]\n{}"


def statuses(folder):
    with suppress(OSError):
        return SweepDir(Path(folder)).statuses() if Path(folder, "jobs.jsonl").exists() else []
    return []


def states(folder):
    return [status.state for status in statuses(folder)]


def logs(folder):
    return [path.read_text() for path in Path(folder, "logs").glob("*.txt")]


def summary(folder, key):
    return json.loads((Path(folder) / "jobs" / key / "summary.json").read_text())


def until(ready, seconds=60.0):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


def kill_jobs(folder):
    """Kill the processes of all jobs that run; return how many."""
    pids = set()
    for status in [RunDir(path).read_status() for path in Path(folder, "jobs").glob("*")]:
        with suppress(ProcessLookupError):
            if status["status"] == "running":
                os.kill(status["pid"], signal.SIGKILL)
                pids.add(status["pid"])
    return len(pids)


def test_a_dry_run_lists_the_jobs_and_makes_nothing(project, rlrun):
    done = rlrun("train", "-m", *TINY, "seed=0,1", "--dry-run")
    assert done.code == 0
    assert done.err == "2 jobs\n"
    assert [line.split()[1] for line in done.out.splitlines()] == ["seed", "0", "1"]
    assert list(project.iterdir()) == []


def test_torchrun_starts_the_ranks_of_a_job(project, rlrun, monkeypatch):
    done = rlrun("train", "-m", *TINY, "num_envs=2", "seed=0", "launcher.ranks=2", "--sweep-dir", "s")
    assert done.code == 0, (done.err, logs("s"))
    (run,) = Path("s/jobs").iterdir()
    assert json.loads((run / "manifest.json").read_text())["ranks"] == 2
    assert {path.name for path in (run / "checkpoints" / "rank-1").iterdir()} < {*os.listdir(run / "checkpoints")}
    (text,) = logs("s")
    assert text.count("completed: ") == 1  # only the first rank prints

    monkeypatch.setattr(distributed, "_world_size", 2)
    refused = rlrun("train", "-m", *TINY, "seed=0,1")
    assert (refused.code, refused.err.count("launcher.ranks=2")) == (2, 1)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SignalException("SIGTERM", signal.SIGTERM), 75),
        (ChildFailedError("rlrun", {1: ProcessFailure(0, 7, 75, "")}), 75),
        (ChildFailedError("rlrun", {1: ProcessFailure(0, 7, -9, "")}), -9),
    ],
)
def test_exit_codes_behind_torchrun_are_those_of_its_processes(error, code, monkeypatch):
    def main(arguments):
        program = ["--no-python", sys.executable, "-P", "-m", "rlrun"]
        assert arguments == ["--standalone", "--nproc-per-node=2", *program, "train"]
        raise error

    monkeypatch.setattr(torch.distributed.run, "main", main)
    monkeypatch.setenv("PYTHONPATH", "")
    assert call(("train",), Job("a", (), "a"), ranks=2) == code


def test_jobs_are_what_single_runs_are_and_more_values_and_budget_are_added(project, rlrun):
    done = rlrun("train", "-m", *TINY, "seed=0,1", "--workers", "2")
    assert done.code == 0, done.err
    first, folder = done.out.splitlines()  # what scripts read
    assert first == "2 jobs: 2 completed"
    assert is_sweep(Path(folder))
    assert Path(folder).parent == project / "sweeps"
    assert rlrun("train", *TINY, "seed=1", "--run-dir", "alone").code == 0
    key = next(job.key for job, *_ in statuses(folder) if job.label == "seed=1")
    assert all(compare(project / "alone", Path(folder) / "jobs" / key).values())
    before = (Path(folder) / "jobs" / key / "status.json").stat().st_mtime_ns

    more = rlrun("train", "-m", *TINY, "seed=range(3)", "--sweep-dir", folder)
    assert more.out.splitlines()[0] == "3 jobs: 3 completed"
    assert (Path(folder) / "jobs" / key / "status.json").stat().st_mtime_ns == before  # nobody touched it

    longer = rlrun("train", "-m", *TINY, "seed=range(3)", "stop.env_steps=400", "--sweep-dir", folder)
    assert longer.out.splitlines()[0] == "3 jobs: 3 completed"
    assert {summary(folder, job.key)["env_steps"] for job, *_ in statuses(folder)} == {400}
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
        (["resume", "full", "--retry-failed"], "--retry-failed is for a sweep, and full is not one"),
    ],
)
def test_wrong_requests_make_nothing(overrides, message, project, rlrun):
    (project / "full").mkdir()
    (project / "full" / "jobs.csv").touch()
    done = rlrun(*overrides)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1
    assert [path.name for path in project.rglob("*")] == ["full", "jobs.csv"]


def test_of_two_sweeps_that_begin_at_once_each_has_its_folder(project):
    assert sweeping._make(project / "s")
    assert not sweeping._make(project / "s")


def test_killed_at_random_every_job_ends_once_and_as_if_it_had_not_been(project, rlrun, forked, meanwhile):
    overrides, dice = [*TINY, "stop.env_steps=1_500", "seed=range(3)"], random.Random(0)
    assert rlrun("train", "-m", *overrides, "--workers", "2", "--sweep-dir", "whole").code == 0
    process = forked(["train", "-m", *overrides, "--sweep-dir", "killed", "--workers", "2"])
    process.until(lambda: "running" in states("killed"))
    time.sleep(dice.uniform(0.0, 0.6))
    process.send_signal(signal.SIGKILL)
    kills = [kill_jobs("killed")]

    def kill_some():
        for _ in range(60):  # until enough were killed, however fast this machine is
            time.sleep(dice.uniform(0.1, 0.4))
            kills.append(kill_jobs("killed"))
            if sum(kills) > 4:
                return

    meanwhile(kill_some)
    outcome = rlrun("resume", "killed", "--workers", "2", "--retries", "99")
    assert outcome.code == 0, outcome.err
    assert sum(kills) > 4
    for job, *_ in statuses("killed"):
        assert all(compare(Path("whole/jobs") / job.key, Path("killed/jobs") / job.key).values())
    assert [log.count("completed:") for log in logs("killed")] == [1] * 3


def _newest(run):
    return max((int(path.name.split("-")[0]) for path in RunDir(run).checkpoint_dirs()), default=-1)


ENDLESS = ("train", "-m", *TINY, "stop.env_steps=1_000_000", "seed=0,1", "--workers", "2", "--sweep-dir", "s")


def begun():
    return len([run for run in Path("s/jobs").glob("*") if _newest(run) > 0]) == 2


def stopped():
    return {RunDir(run).read_status()["status"] for run in Path("s/jobs").glob("*")} == {"stopped"}


def test_jobs_are_stopped_in_order_by_a_signal_to_their_scheduler(project, rlrun, meanwhile):
    def stop():
        until(begun)
        os.kill(os.getpid(), signal.SIGTERM)

    meanwhile(stop)
    outcome = rlrun(*ENDLESS)
    assert (outcome.code, outcome.out.splitlines()[0]) == (75, "2 jobs: 2 pending")
    assert stopped()  # it has waited for them


def test_jobs_are_stopped_in_order_by_the_end_of_their_scheduler(project, forked):
    process = forked([*ENDLESS])
    process.until(begun)
    process.send_signal(signal.SIGKILL)
    until(stopped, 20.0)


def test_failures_are_shown_at_once_with_their_last_line_and_the_rest_goes_on(project, rlrun, monkeypatch):
    monkeypatch.setattr(scheduler, "LATE", 1.0)
    (project / "fails.py").write_text(FAILS)
    how = "+env.kwargs.how='raises','is killed','hangs','not',leaves,'leaves from C'"
    overrides = [*TINY, "env.target=fails.Fails", how, "checkpoint.every=50", "env.vectorization=sync"]
    done = rlrun("train", "-m", *overrides, "--sweep-dir", "s", "--workers", "6", "--stall", "4")
    assert done.code == 1
    errors = {job.label.split("=")[1].strip("'"): error for job, _, _, error in statuses("s")}
    assert "ValueError: the arm broke" in errors["raises"]
    assert errors["is killed"] == "killed by SIGKILL: by hand, or for want of memory"
    assert errors["hangs"].startswith("no progress for ")
    assert (
        errors["leaves"] == errors["leaves from C"] == "its process left with exit code 0 before the run was completed"
    )
    assert errors["not"] is None
    for error in filter(None, errors.values()):
        assert f": failed: {error}\n" in done.err

    (project / "mended").touch()
    again = rlrun("resume", "s", "--retry-failed", "--workers", "5")
    assert (again.code, again.out.splitlines()[0]) == (0, "6 jobs: 6 completed"), again.err
    manifests = [json.loads((run / "manifest.json").read_text()) for run in Path("s/jobs").glob("*")]
    resumed = [record["checkpoint"] for about in manifests for record in about.get("resumed", [])]
    assert resumed == ["0000000100-0000000025"] * 5


def test_two_schedulers_share_the_jobs(project, rlrun, forked):
    overrides = ["train", "-m", *TINY, "seed=range(4)", "--sweep-dir", "s", "--workers", "1"]
    other = forked(overrides)
    other.until(lambda: "running" in states("s"))
    assert rlrun(*overrides).out.splitlines()[0] == "4 jobs: 4 completed"  # it waits for those of the other
    assert other.wait(60) == 0
    for run in Path("s/jobs").glob("*"):
        assert "resumed" not in json.loads((run / "manifest.json").read_text())


def test_a_sweep_runs_what_its_overrides_came_to_when_it_began(project, rlrun, meanwhile, write):
    def change():
        until(lambda: "running" in states("s"))
        write("conf/algorithm/mine.yaml", MINE.format("algorithm: {n_step: 3}\n"))

    write("conf/algorithm/mine.yaml", MINE.format(""))
    meanwhile(change)
    overrides = ["algorithm=mine", *TINY[1:], "seed=0,1"]
    assert rlrun("train", "-m", *overrides, "--sweep-dir", "s", "--workers", "1").code == 0
    Path("s/jobs").rename("elsewhere")
    assert rlrun("resume", "s").code == 1
    why = "these overrides make another config than when the sweep began: conf/ has changed"
    assert all(error.startswith(why) for *_, error in statuses("s"))


def test_a_sweep_that_was_cut_off_before_it_had_its_jobs_is_none(project, monkeypatch):
    def cut(directory, jobs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SweepDir, "add", cut)
        with pytest.raises(KeyboardInterrupt):
            sweep([Job("a", (), "")], folder=Path("s"))
    assert not is_sweep(Path("s"))
    sweep([], folder=Path("s"))  # the same command goes on
    assert is_sweep(Path("s"))


def test_a_sweep_of_another_version_is_refused_in_a_line(project, rlrun):
    Path("s").mkdir()
    for name in ("sweep.json", "jobs.sqlite"):
        Path("s", name).write_text("{}")
    for request in (["resume", "s"], ["train", "-m", *TINY, "seed=0", "--sweep-dir", "s"]):
        outcome = rlrun(*request)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "has no jobs.jsonl: another version of rlrun made this sweep; begin another one" in outcome.err
    assert not Path("s/jobs.jsonl").exists()
