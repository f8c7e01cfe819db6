"""Who works on which job: claims of several coordinators, some of which fall asleep."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from pathlib import Path

import pytest

from rlrun.errors import RunDirError
from rlrun.sweep.book import SILENT, Book
from rlrun.sweep.expansion import Job


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


def jobs(count, *words):
    return [Job(f"key{number}", (f"seed={number}", *words), f"seed={number}") for number in range(count)]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def book(tmp_path, clock):
    return Book(tmp_path / "jobs.sqlite", clock=clock)


def states(book):
    return [entry.state for entry in book.entries()]


def test_each_job_is_claimed_once_and_in_order(book):
    book.add(jobs(3))
    claimed = [book.claim(owner) for owner in ("one", "other", "one")]
    assert [entry.key for entry in claimed] == ["key0", "key1", "key2"]
    assert book.claim("other") is None
    assert book.end("one", "key0", "completed", code=0)
    assert states(book) == ["completed", "running", "running"]


def test_more_values_add_jobs_and_a_larger_budget_opens_one_again(book):
    book.add(jobs(2))
    for key in ("key0", "key1"):
        book.claim("one")
        book.end("one", key, "completed" if key == "key0" else "failed", error="bad")
    book.add(jobs(3))
    assert states(book) == ["completed", "failed", "pending"]
    book.add(jobs(3, "stop.env_steps=9"))
    assert states(book) == ["pending", "failed", "pending"]
    assert book.retry() == 1
    assert states(book) == ["pending"] * 3


def test_who_is_silent_too_long_loses_its_jobs_and_what_it_says_of_them_counts_no_more(book, clock):
    book.add(jobs(1))
    book.claim("one")
    clock.now += SILENT - 1.0
    assert book.claim("other") is None
    assert book.beat("one", ["key0"]) == set()
    clock.now += SILENT + 1.0
    assert book.claim("other").key == "key0"
    assert book.beat("one", ["key0"]) == {"key0"}
    assert not book.end("one", "key0", "failed", error="mine")
    assert book.end("other", "key0", "completed", code=0)
    assert states(book) == ["completed"]


def test_jobs_of_a_coordinator_that_is_gone_are_free_at_once(book):
    book.add(jobs(2))
    book.claim("gone")
    book.claim("there")
    book.free(lambda owner: owner == "gone")
    assert states(book) == ["pending", "running"]


def test_words_that_came_while_a_job_was_done_are_not_lost(book):
    book.add(jobs(1, "stop.env_steps=1"))
    done_with = book.claim("one").words
    book.add(jobs(1, "stop.env_steps=2"))
    assert book.end("one", "key0", "completed", code=0, words=done_with)
    assert states(book) == ["pending"]
    more = book.claim("one").words
    assert "stop.env_steps=2" in more
    assert book.end("one", "key0", "completed", code=0, words=more)
    assert states(book) == ["completed"]


def test_attempts_are_failures_not_claims(book, clock):
    book.add(jobs(1))
    book.claim("one")
    clock.now += SILENT + 1.0
    book.claim("other")  # the first is dead
    book.free(lambda owner: True)
    assert book.claim("third").attempts == 0
    book.end("third", "key0", "pending", error="bad", counts=True)
    assert book.claim("third").attempts == 1
    book.end("third", "key0", "completed")
    book.add(jobs(1, "stop.env_steps=9"))
    assert book.claim("third").attempts == 0


def test_a_job_that_is_put_off_waits(book, clock):
    book.add(jobs(1))
    book.claim("one")
    book.end("one", "key0", "pending", delay=5.0)
    assert book.claim("one") is None
    clock.now += 5.0
    assert book.claim("one").attempts == 0


def test_no_job_is_worked_on_twice_at_a_time_whoever_stalls(tmp_path):
    """A thousand jobs, two coordinators that fall asleep at random for longer than they may be silent."""
    clock, mutex = Clock(), threading.Lock()
    path = tmp_path / "jobs.sqlite"
    Book(path, clock=clock).add(jobs(1_000))
    completed: dict[str, list[str]] = {}
    errors: list[BaseException] = []

    def coordinate(owner):
        dice, book = random.Random(owner), Book(path, clock=clock)
        try:
            while (entry := book.claim(owner)) is not None:
                with mutex:  # time passes, for both
                    clock.now += dice.choice([0.1, 1.0, SILENT / 2, SILENT * 1.5])
                if dice.random() < 0.1:  # the process dies, nothing is told
                    continue
                if book.end(owner, entry.key, "completed", code=0):
                    with mutex:
                        completed.setdefault(entry.key, []).append(owner)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=coordinate, args=(owner,)) for owner in ("one", "other", "third")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 2.0 * SILENT
    coordinate("last")
    while len(completed) < 1_000:  # of those that "died" with the last
        clock.now += 2.0 * SILENT
        coordinate("last again")
    assert errors == []
    assert {key: len(owners) for key, owners in completed.items()} == {f"key{number}": 1 for number in range(1_000)}
    assert {entry.state for entry in Book(path).entries()} == {"completed"}


def test_a_file_that_is_no_book_is_named(tmp_path):
    (tmp_path / "jobs.sqlite").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(RunDirError, match=r"jobs\.sqlite cannot be used: file is not a database"):
        Book(tmp_path / "jobs.sqlite")


def test_a_write_that_fails_leaves_all_as_it_was(book):
    book.add(jobs(1))

    def fail(owner):
        raise ZeroDivisionError

    book.claim("one")
    with pytest.raises(ZeroDivisionError):
        book.free(fail)
    assert states(book) == ["running"]


def test_a_journal_that_names_another_file_is_not_played_back(tmp_path):
    """SQLite deletes the file that such a journal names, wherever it lies."""
    Book(tmp_path / "jobs.sqlite").add(jobs(3))
    precious = tmp_path / "precious.txt"
    precious.write_text("precious")
    journal = tmp_path / "jobs.sqlite-journal"
    name = os.fsencode(precious)
    with sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None) as book:
        book.execute("PRAGMA cache_size = 1")
        book.execute("BEGIN IMMEDIATE")
        book.execute("CREATE TABLE more (x)")
        book.executemany("INSERT INTO more VALUES (?)", [("x" * 500,)] * 2000)
        hot = journal.read_bytes()
        book.execute("ROLLBACK")
    book.close()
    page = int.from_bytes(hot[24:28], "big")
    end = [(1 << 30) // page + 1, name, len(name), sum(name), bytes.fromhex("d9d505f920a163d7")]
    journal.write_bytes(hot + b"".join(part if isinstance(part, bytes) else part.to_bytes(4, "big") for part in end))
    with pytest.raises(RunDirError, match=r"jobs\.sqlite-journal is not of this sweep: it names another file"):
        Book(tmp_path / "jobs.sqlite")
    assert precious.read_text() == "precious"
    journal.write_bytes(hot)  # one that a killed process left
    assert len(Book(tmp_path / "jobs.sqlite").entries()) == 3


@pytest.mark.parametrize("name", ["jobs.sqlite", "jobs.sqlite-journal", "jobs.sqlite-wal", "jobs.sqlite-shm"])
def test_a_hard_link_is_not_written_to(name, tmp_path):
    (tmp_path / "mine.txt").write_text("")
    os.link(tmp_path / "mine.txt", tmp_path / name)
    with pytest.raises(RunDirError, match=f"{name} cannot be used: it is a hard link"):
        Book(tmp_path / "jobs.sqlite")
    assert Path(tmp_path / "mine.txt").read_text() == ""
