"""Who works on which job: claims of several coordinators, some of which fall asleep."""

import os
import random
import sqlite3
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.expansion import Job
from rlrun.core.errors import RunDirError
from rlrun.sweep import job_store as module
from rlrun.sweep.job_store import SILENT, JobStore


def jobs(count, *overrides):
    return [Job(f"key{number}", (f"seed={number}", *overrides), f"seed={number}") for number in range(count)]


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when a test says so."""
    clock = SimpleNamespace(now=1_000.0, time=lambda: clock.now)
    monkeypatch.setattr(module, "time", clock)
    return clock


def states(job_store):
    return [entry.state for entry in job_store.entries()]


def test_each_job_is_claimed_once_and_in_order(job_store):
    job_store.add(jobs(3))
    claimed = [job_store.claim(owner) for owner in ("one", "other", "one")]
    assert [entry.key for entry in claimed] == ["key0", "key1", "key2"]
    assert job_store.claim("other") is None
    assert job_store.end("one", "key0", "completed", code=0)
    assert states(job_store) == ["completed", "running", "running"]


def test_more_values_add_jobs_and_a_larger_budget_opens_one_again(job_store):
    job_store.add(jobs(2))
    for key in ("key0", "key1"):
        job_store.claim("one")
        job_store.end("one", key, "completed" if key == "key0" else "failed", error="bad")
    job_store.add(jobs(3))
    assert states(job_store) == ["completed", "failed", "pending"]
    job_store.add(jobs(3, "stop.env_steps=9"))
    assert states(job_store) == ["pending", "failed", "pending"]
    assert job_store.retry() == 1
    assert states(job_store) == ["pending"] * 3


def test_who_is_silent_too_long_loses_its_jobs_and_what_it_says_of_them_counts_no_more(job_store, clock):
    job_store.add(jobs(1))
    job_store.claim("one")
    clock.now += SILENT - 1.0
    assert job_store.claim("other") is None
    assert job_store.beat("one", ["key0"]) == set()
    clock.now += SILENT + 1.0
    assert job_store.claim("other").key == "key0"
    assert job_store.beat("one", ["key0"]) == {"key0"}
    assert not job_store.end("one", "key0", "failed", error="mine")
    assert job_store.end("other", "key0", "completed", code=0)
    assert states(job_store) == ["completed"]


def test_jobs_of_a_coordinator_that_is_gone_are_free_at_once(job_store):
    job_store.add(jobs(2))
    job_store.claim("gone")
    job_store.claim("there")
    job_store.free(lambda owner: owner == "gone")
    assert states(job_store) == ["pending", "running"]


def test_words_that_came_while_a_job_was_done_are_not_lost(job_store):
    job_store.add(jobs(1, "stop.env_steps=1"))
    done_with = job_store.claim("one").overrides
    job_store.add(jobs(1, "stop.env_steps=2"))
    assert job_store.end("one", "key0", "completed", code=0, overrides=done_with)
    assert states(job_store) == ["pending"]
    more = job_store.claim("one").overrides
    assert "stop.env_steps=2" in more
    assert job_store.end("one", "key0", "completed", code=0, overrides=more)
    assert states(job_store) == ["completed"]


def test_attempts_are_failures_not_claims(job_store, clock):
    job_store.add(jobs(1))
    job_store.claim("one")
    clock.now += SILENT + 1.0
    job_store.claim("other")  # the first is dead
    job_store.free(lambda owner: True)
    assert job_store.claim("third").attempts == 0
    job_store.end("third", "key0", "pending", error="bad", counts=True)
    assert job_store.claim("third").attempts == 1
    job_store.end("third", "key0", "completed")
    job_store.add(jobs(1, "stop.env_steps=9"))
    assert job_store.claim("third").attempts == 0


def test_a_job_that_is_put_off_waits(job_store, clock):
    job_store.add(jobs(1))
    job_store.claim("one")
    job_store.end("one", "key0", "pending", delay=5.0)
    assert job_store.claim("one") is None
    clock.now += 5.0
    assert job_store.claim("one").attempts == 0


def test_no_job_is_worked_on_twice_at_a_time_whoever_stalls(tmp_path, clock):
    """Three coordinators fall asleep at random for longer than they may be silent."""
    mutex, path, completed, errors = threading.Lock(), tmp_path / "jobs.sqlite", Counter(), []
    JobStore(path).add(jobs(300))

    def coordinate(owner):
        dice, job_store = random.Random(owner), JobStore(path)
        try:
            while (entry := job_store.claim(owner)) is not None:
                with mutex:  # time passes, for both
                    clock.now += dice.choice([0.1, 1.0, SILENT / 2, SILENT * 1.5])
                if dice.random() < 0.1:  # the process dies without a word
                    continue
                if job_store.end(owner, entry.key, "completed", code=0):
                    with mutex:
                        completed[entry.key] += 1
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=coordinate, args=(owner,)) for owner in ("one", "other", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while len(completed) < 300:  # some died with the last
        clock.now += 2.0 * SILENT
        coordinate("last")
    assert errors == []
    assert completed == {f"key{number}": 1 for number in range(300)}
    assert {entry.state for entry in JobStore(path).entries()} == {"completed"}


def test_a_file_that_is_no_book_is_named(tmp_path):
    (tmp_path / "jobs.sqlite").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(RunDirError, match=r"jobs\.sqlite cannot be used: file is not a database"):
        JobStore(tmp_path / "jobs.sqlite")


def test_a_view_of_rows_without_end_is_no_table_of_jobs(tmp_path):
    with sqlite3.connect(tmp_path / "jobs.sqlite") as forged:
        forged.execute(
            "CREATE VIEW jobs AS WITH RECURSIVE n(key) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT * FROM n"
        )
    with pytest.raises(RunDirError, match=r"jobs\.sqlite is damaged: it has no table of jobs"):
        module.look(tmp_path / "jobs.sqlite")
    with pytest.raises(RunDirError, match=r"jobs\.sqlite is damaged: it has no table of jobs"):
        JobStore(tmp_path / "jobs.sqlite")


def test_a_write_that_fails_leaves_all_as_it_was(job_store):
    job_store.add(jobs(1))

    def fail(owner):
        raise ZeroDivisionError

    job_store.claim("one")
    with pytest.raises(ZeroDivisionError):
        job_store.free(fail)
    assert states(job_store) == ["running"]


def test_a_journal_that_names_another_file_is_not_played_back(tmp_path):
    """SQLite deletes the file that such a journal names, wherever it lies."""
    JobStore(tmp_path / "jobs.sqlite").add(jobs(3))
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    journal = tmp_path / "jobs.sqlite-journal"
    name = os.fsencode(precious)
    with sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None) as job_store:
        job_store.execute("PRAGMA cache_size = 1")
        job_store.execute("PRAGMA synchronous = FULL")
        job_store.execute("BEGIN IMMEDIATE")
        job_store.execute("CREATE TABLE more (x)")
        job_store.executemany("INSERT INTO more VALUES (?)", [("x" * 500,)] * 2000)
        hot = journal.read_bytes()
        job_store.execute("ROLLBACK")
    job_store.close()
    page = int.from_bytes(hot[24:28], "big")
    end = [(1 << 30) // page + 1, name, len(name), sum(name), bytes.fromhex("d9d505f920a163d7")]
    journal.write_bytes(hot + b"".join(part if isinstance(part, bytes) else part.to_bytes(4, "big") for part in end))
    with pytest.raises(RunDirError, match=r"jobs\.sqlite-journal was not left by rlrun: it names another file"):
        JobStore(tmp_path / "jobs.sqlite")
    assert precious.read_text() == "precious"
    journal.write_bytes(hot)  # one that a killed process left
    assert len(JobStore(tmp_path / "jobs.sqlite").entries()) == 3


@pytest.mark.parametrize("name", ["jobs.sqlite", "jobs.sqlite-journal", "jobs.sqlite-wal", "jobs.sqlite-shm"])
def test_a_hard_link_is_not_written_to(name, tmp_path):
    (tmp_path / "mine.txt").write_text("")
    os.link(tmp_path / "mine.txt", tmp_path / name)
    with pytest.raises(RunDirError, match=f"{name} cannot be used: it is a hard link"):
        JobStore(tmp_path / "jobs.sqlite")
    assert Path(tmp_path / "mine.txt").read_text() == ""
