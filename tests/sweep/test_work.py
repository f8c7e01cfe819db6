"""What the process of a job does before it trains: whose job is it?"""

import os
import signal
import time

import pytest

from rlrun.config.expansion import expand
from rlrun.runs.directory import is_run
from rlrun.sweep import work
from rlrun.sweep.children import STOPPED
from rlrun.sweep.job_store import JobStore, Task
from rlrun.sweep.work import carry_out

WORDS = [
    *("algorithm=dqn", "env=cartpole", "stop.env_steps=30", "algorithm.warmup_steps=10", "algorithm.hidden=[8]"),
    *("evaluation.every=0", "memory.length=100", "logger=[]"),
]


@pytest.fixture
def claimed(tmp_path):
    """A job that a coordinator has claimed, and the task that it would hand to a process."""
    (tmp_path / "logs").mkdir()
    job_store, (job,) = JobStore(tmp_path / "jobs.sqlite"), expand(WORDS)
    job_store.add([job])
    entry = job_store.claim("here:1:a")
    return job_store, Task(
        tmp_path, job.key, tmp_path / "jobs" / job.key, entry.overrides, composed=job.composed, owner=entry.owner
    )


def test_a_process_that_waited_too_long_does_nothing(claimed):
    job_store, task = claimed
    job_store.free(lambda owner: True)
    assert carry_out(task) == STOPPED
    job_store.claim("elsewhere:2:b")
    assert carry_out(task) == STOPPED
    assert not task.run.exists()


def test_a_damaged_book_is_told_in_a_line(claimed, capsys):
    _, task = claimed
    (task.folder / "jobs.sqlite").write_bytes(b"no book" * 1000)
    assert carry_out(task) == 2
    assert capsys.readouterr().err.startswith("rlrun: ")


def other(act):
    """Let another process act, and then wait until it is killed; return its pid, and what was written."""
    pipe, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(theirs, act())
        time.sleep(60)
        os._exit(0)
    return pid, os.read(pipe, 100)


def end(pid, *, ours=True):
    os.kill(pid, signal.SIGKILL)
    if ours:
        os.waitpid(pid, 0)


def test_two_processes_never_do_one_job(claimed):
    _, task = claimed
    pid, _ = other(lambda: b"%d" % work._is_claimed(task))
    assert carry_out(task) == STOPPED
    assert not task.run.exists()
    end(pid)
    assert carry_out(task) == 0
    assert is_run(task.run)


def test_a_lane_that_outlives_its_job_keeps_nobody_from_it(claimed):
    _, task = claimed
    pid, env_index = other(lambda: b"%d" % (work._is_claimed(task) and other(lambda: b"here")[0]))
    end(pid)
    assert work._is_claimed(task)
    end(int(env_index), ours=False)


def test_what_the_words_came_to_when_the_sweep_began_is_run(claimed, tmp_path, monkeypatch):
    _, task = claimed
    own = tmp_path / "project" / "conf" / "algorithm"
    own.mkdir(parents=True)
    own.joinpath("dqn.yaml").write_text("a: file that changed since\n")
    monkeypatch.chdir(tmp_path / "project")
    assert carry_out(task) == 0
