"""What the process of a job does before it trains: whose job is it?"""

from __future__ import annotations

import fcntl

import pytest

from rlrun.rundir import is_run
from rlrun.sweep import Book, expand
from rlrun.sweep.task import Task
from rlrun.sweep.work import STOPPED, carry_out

WORDS = [
    *("algorithm=dqn", "env=cartpole", "stop.env_steps=30", "algorithm.warmup_steps=10", "algorithm.hidden=[8]"),
    *("evaluation.every=0", "memory.length=100", "logger=[]"),
]


@pytest.fixture
def claimed(tmp_path):
    """A job that a coordinator has claimed, and the task that it would hand to a process."""
    (tmp_path / "logs").mkdir()
    book, (job,) = Book(tmp_path / "jobs.sqlite"), expand(WORDS)
    book.add([job])
    entry = book.claim("here:1:a")
    return book, Task(tmp_path / "jobs" / job.key, entry.words, composed=job.composed, owner=entry.owner)


def test_the_claimed_job_is_done(claimed):
    _, task = claimed
    assert carry_out(task) == 0
    assert is_run(task.run)


def test_a_process_that_waited_too_long_does_nothing(claimed):
    book, task = claimed
    book.free(lambda owner: True)
    assert carry_out(task) == STOPPED
    book.claim("elsewhere:2:b")
    assert carry_out(task) == STOPPED
    assert not task.run.exists()


def test_a_damaged_book_is_told_in_a_line(claimed, capsys):
    _, task = claimed
    (task.folder / "jobs.sqlite").write_bytes(b"no book" * 1000)
    assert carry_out(task) == 2
    assert capsys.readouterr().err.startswith("rlrun: ")


def test_two_processes_never_do_one_job(claimed):
    _, task = claimed
    with open(task.folder / "logs" / f"{task.run.name}.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert carry_out(task) == STOPPED
        assert not task.run.exists()
    assert carry_out(task) == 0


def test_what_the_words_came_to_when_the_sweep_began_is_run(claimed, tmp_path, monkeypatch):
    _, task = claimed
    own = tmp_path / "project" / "conf" / "algorithm"
    own.mkdir(parents=True)
    own.joinpath("dqn.yaml").write_text("a: file that changed since\n")
    monkeypatch.chdir(tmp_path / "project")
    assert carry_out(task) == 0
