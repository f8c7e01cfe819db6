"""The list of a sweep's jobs, and the states of their run directories."""

import json
import multiprocessing
import time
from dataclasses import replace

import pytest

from rlrun.config.overrides import NUMBER
from rlrun.core.errors import ConfigError, RunDirError
from rlrun.runs import directory
from rlrun.runs import lock as locks
from rlrun.runs.directory import RunDir
from rlrun.sweep.directory import SweepDir, is_completed, require_apart

from .conftest import complete, job


def states(sweep):
    return [status.state for status in sweep.statuses()]


def test_a_job_is_what_its_run_directory_says(sweep_dir):
    sweep_dir.add([job("a", "seed=1")])
    run = sweep_dir.run(job("a"))
    assert states(sweep_dir) == ["pending"]
    run.path.mkdir(parents=True)
    lock = locks.locked(run.lock)
    assert states(sweep_dir) == ["running"]  # before the run says so
    run.write_status("running")
    assert states(sweep_dir) == ["running"]
    locks.release(lock)
    assert states(sweep_dir) == ["pending"]  # it was killed
    run.write_status("failed", error="the arm \x1b broke")
    assert sweep_dir.statuses()[0][1:] == ("failed", 1, "the arm ? broke")
    assert SweepDir(sweep_dir.path, retries=1).statuses()[0][1:3] == ("pending", 1)
    sweep_dir.reopen(["a"], "failed")
    assert sweep_dir.statuses()[0][1:] == ("pending", 0, None)
    complete(run)
    assert states(sweep_dir) == ["completed"]


def test_a_run_counts_by_its_heartbeat_where_its_lock_cannot_be_asked(sweep_dir, monkeypatch):
    sweep_dir.add([job("a")])
    sweep_dir.fail(job("a"), "the arm broke")
    sweep_dir.run(job("a")).write_status("running")
    monkeypatch.setattr(locks, "is_held", lambda path: None)
    monkeypatch.setattr(locks, "is_alive", lambda signature: None)
    assert states(sweep_dir) == ["running"]
    monkeypatch.setattr(directory, "SILENT", -1.0)
    assert states(sweep_dir) == ["pending"]


def test_a_pruned_job_stays_so_unless_it_completes(sweep_dir):
    sweep_dir.add(job(key) for key in "abc")
    complete(sweep_dir.run(job("a")))
    sweep_dir.prune(["a", "b", "c"])
    assert states(sweep_dir) == ["completed", "pruned", "pruned"]
    for status in ("running", "stopped"):
        sweep_dir.run(job("b")).write_status(status)  # by the process that stops
    complete(sweep_dir.run(job("c")))
    assert states(sweep_dir) == ["completed", "pruned", "completed"]
    sweep_dir.reopen(["a", "b"], "pruned")
    assert states(sweep_dir) == ["completed", "pending", "completed"]


def test_more_values_add_jobs_and_a_larger_budget_opens_one_again(sweep_dir):
    sweep_dir.add([job("a", "stop.updates=1"), job("b", "stop.updates=1")])
    run = sweep_dir.run(job("a"))
    run.path.mkdir(parents=True)
    run.overrides.write_text("stop.updates=1\n")
    run.summary.write_text('{"status": "completed", "stopped_by": "stop.updates", "updates": 1}')
    run.write_status("completed")
    assert states(sweep_dir) == ["completed", "pending"]
    other = SweepDir(sweep_dir.path)
    other.add([job("c", "stop.updates=1"), job("a", "stop.updates=2")])
    assert [job.key for job in sweep_dir.jobs()] == ["a", "b", "c"]
    assert sweep_dir.jobs()[0].overrides == ("stop.updates=2",)
    assert states(sweep_dir) == ["pending"] * 3


def test_who_adds_a_job_knows_its_config_and_others_compose_it(sweep_dir):
    sweep_dir.add([replace(job("a"), composed=b"packed")])
    assert sweep_dir.jobs()[0].composed == b"packed"
    assert SweepDir(sweep_dir.path).jobs()[0].composed == b""
    SweepDir(sweep_dir.path).add([job("a", "stop.updates=2")])
    assert sweep_dir.jobs()[0].composed == b""


def add(path, name):
    for number in range(20):
        SweepDir(path).add([job(f"{name}{number}"), job("both")])


def test_jobs_that_two_processes_add_at_once_are_all_there(sweep_dir):
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=add, args=(sweep_dir.path, name)) for name in "ab"]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert len(sweep_dir.jobs()) == 41


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"key": "a"}',
        '{"key": "../a", "overrides": [], "label": ""}',
        '{"key": "b", "overrides": [1], "label": ""}',
        '{"key": "b", "overrides": "seed=1", "label": ""}',
        '{"key": "-b", "overrides": [], "label": ""}',
        json.dumps({"key": "b" * 300, "overrides": [], "label": ""}),
    ],
)
def test_a_damaged_list_is_named(line, sweep_dir):
    sweep_dir.add([job("a")])
    with sweep_dir.list.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunDirError, match=r"jobs\.jsonl is damaged: a line of it is not a job"):
        sweep_dir.jobs()


@pytest.mark.parametrize("subdir", ["../victim", "/victim", "jobs/a", "jobs/a/b", "jobs", "logs", "b\0c", "b" * 300])
def test_a_list_that_leads_elsewhere_is_damaged(subdir, sweep_dir):
    sweep_dir.add([job("a")])
    with sweep_dir.list.open("a") as file:
        file.write(json.dumps({"key": "b", "overrides": [], "label": "", "subdir": subdir}) + "\n")
    with pytest.raises(RunDirError, match=r"jobs\.jsonl is damaged: hydra\.sweep\.subdir: "):
        sweep_dir.jobs()


def test_a_list_with_a_job_twice_is_damaged(sweep_dir):
    sweep_dir.add([job("a")])
    with sweep_dir.list.open("a") as file:
        file.write(json.dumps({"key": "a", "overrides": [], "label": "", "subdir": "b"}) + "\n")
    with pytest.raises(RunDirError, match=r"jobs\.jsonl is damaged: two lines are of job a$"):
        sweep_dir.jobs()


def test_a_sweep_of_another_version_is_refused(sweep_dir):
    with pytest.raises(
        RunDirError, match=r"has no jobs\.jsonl: another version of rlrun made this sweep; begin another"
    ):
        sweep_dir.jobs()


def test_numbers_of_folders_count_the_jobs_that_are_there(sweep_dir):
    for keys in ("ab", "bc"):
        sweep_dir.add(replace(job(key), subdir=f"of-{NUMBER}") for key in keys)
    assert [sweep_dir.run(job).path.name for job in sweep_dir.jobs()] == ["of-0", "of-1", "of-2"]


@pytest.mark.parametrize("subdir", ["../out", "/out", "x/../../out", "logs/x", "jobs.jsonl", "."])
def test_jobs_stay_within_their_sweep(subdir):
    with pytest.raises(ConfigError, match="wanted a folder below the sweep's own"):
        require_apart([replace(job("a"), subdir=subdir)])


def test_a_thousand_jobs_are_looked_at_quickly(sweep_dir):
    sweep_dir.add(job(f"key{number}") for number in range(1_000))
    complete(sweep_dir.run(job("key0")))
    assert states(sweep_dir).count("pending") == 999
    begun = time.process_time()
    states(sweep_dir)
    assert time.process_time() - begun < 0.1


@pytest.mark.parametrize(
    ("override", "summary", "completed"),
    [
        ("stop.mean_return=5", {"evaluation": {"mean_return": 6.0}}, True),
        ("stop.mean_return=5", {"evaluation": {"mean_return": 4.0}}, False),
        ("stop.mean_return=5", {"evaluation": None}, False),
        ("stop.updates=7", {"updates": 9, "group_updates": {"default": 7}}, True),
        ("stop.updates=7", {"updates": 9, "group_updates": {"default": 5}}, False),
        ("stop.updates=7", {"updates": 9}, True),
    ],
)
def test_a_job_is_completed_at_its_budget(override, summary, completed, tmp_path):
    run = RunDir.claim(tmp_path / "run")
    run.summary.write_text(json.dumps({"status": "completed", "stopped_by": "stop.updates", **summary}))
    assert is_completed(run, [override]) is completed
