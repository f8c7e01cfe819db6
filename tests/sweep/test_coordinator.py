"""What a coordinator says to its jobs, and how often; the jobs are none."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from rlrun.config.expansion import Job
from rlrun.runs import signals
from rlrun.runs.directory import RunDir
from rlrun.sweep import coordinator
from rlrun.sweep.coordinator import Coordinator, Limits, is_completed
from rlrun.sweep.job_store import JobStore


@pytest.fixture(autouse=True)
def believed(monkeypatch):
    """Let jobs that are none be completed where they say so."""
    monkeypatch.setattr(coordinator, "is_completed", lambda run, overrides: True)


class Asked:
    """A job that leaves some looks after it was asked to, and counts how often it was."""

    def __init__(self):
        self.asked, self.looks = 0, 3

    def waits(self):
        return True

    def poll(self):
        self.looks -= self.asked > 0
        return 75 if self.looks <= 0 else None

    def terminate(self):
        self.asked += 1

    def kill(self):
        raise AssertionError("nothing hangs")


class Launcher:
    """Starts such jobs; `during` is called with how many there are, while the newest one is being started."""

    def __init__(self, during):
        self.during, self.jobs = during, []

    def start(self, entry, slot):
        self.jobs.append(Asked())
        self.during(len(self.jobs))
        return self.jobs[-1]


@pytest.fixture
def coordinate(tmp_path):
    """Return the exit code, and how often each job was asked to leave."""

    def run(during, *, jobs=4, source=None):
        launcher, job_store = Launcher(during), JobStore(tmp_path / "jobs.sqlite")
        job_store.add([Job(f"key{number}", (), "") for number in range(jobs)])
        options = {"workers": jobs, "limits": Limits(), "show": lambda entries: None, "source": source}
        return Coordinator(tmp_path, job_store, launcher, **options).run(), [job.asked for job in launcher.jobs]

    return run


class Short:
    """A launcher without room for the first job; the others are over at once."""

    def start(self, entry, slot):
        if entry.key == "key0":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        job = Asked()
        job.poll = lambda: 0
        return job


def test_a_job_that_cannot_be_started_fails_alone(tmp_path):
    job_store = JobStore(tmp_path / "jobs.sqlite")
    job_store.add([Job(f"key{number}", (), "") for number in range(3)])
    runner = Coordinator(tmp_path, job_store, Short(), workers=2, limits=Limits(), show=lambda entries: None)
    assert runner.run() == 1
    assert [entry.state for entry in job_store.entries()] == ["failed", "completed", "completed"]
    assert job_store.entries()[0].error.startswith("it cannot be started: ")


def test_a_place_that_is_free_asks_for_jobs_now_and_then(tmp_path, monkeypatch):
    job_store, claims, claim = JobStore(tmp_path / "jobs.sqlite"), [], JobStore.claim
    monkeypatch.setattr(JobStore, "claim", lambda job_store, owner: claims.append(owner) or claim(job_store, owner))
    job_store.add([Job("key0", (), "")])
    launcher = Launcher(lambda count: None)
    runner = Coordinator(tmp_path, job_store, launcher, workers=2, limits=Limits(), show=lambda entries: None)
    end = time.monotonic() + 0.3
    launcher.during = lambda count: setattr(launcher.jobs[0], "poll", lambda: 0 if time.monotonic() > end else None)
    assert runner.run() == 0
    assert len(claims) <= 4


@pytest.mark.parametrize(
    ("numbers", "during", "twice", "asked"),
    [
        ([signal.SIGTERM], 2, signals.TWICE, [1, 1]),  # while the second of four jobs is begun
        ([signal.SIGTERM, signal.SIGINT], 1, signals.TWICE, [1]),  # at once: they are one
        ([signal.SIGTERM, signal.SIGTERM], 1, 0.0, [2]),  # the second one is passed on
    ],
)
def test_a_signal_stops_all_jobs_that_were_begun(numbers, during, twice, asked, coordinate, monkeypatch):
    monkeypatch.setattr(coordinator, "TWICE", twice)

    def signal_self(count):
        for number in numbers if count == during else ():
            os.kill(os.getpid(), number)

    assert coordinate(signal_self) == (75, asked)


def test_a_job_that_is_left_is_told_once(coordinate, tmp_path, monkeypatch):
    monkeypatch.setattr(coordinator, "BEAT", 0.0)

    class Source:
        """A search that has pruned what it has."""

        def look(self, *, news):
            return {entry.key for entry in JobStore(tmp_path / "jobs.sqlite").entries() if entry.state == "pruned"}

        def offer(self):
            return False

        def over(self):
            return True

    prune = JobStore(tmp_path / "jobs.sqlite").prune
    assert coordinate(lambda count: prune(["key0"]), jobs=1, source=Source()) == (0, [1])


@pytest.mark.parametrize(
    ("override", "summary", "completed"),
    [
        ("stop.mean_return=5", {"evaluation": {"mean_return": 6.0}}, True),
        ("stop.mean_return=5", {"evaluation": {"mean_return": 4.0}}, False),
        ("stop.mean_return=5", {"evaluation": "text"}, False),
        ("stop.mean_return=5", {"evaluation": {"mean_return": "a"}}, False),
        ("stop.updates=1e+-", {"updates": 9}, False),
    ],
)
def test_foreign_summaries_stop_no_sweep(override, summary, completed, tmp_path):
    run = RunDir.claim(tmp_path / "run")
    run.summary.write_text(json.dumps({"status": "completed", "stopped_by": "stop.updates", **summary}))
    run.status.write_text(json.dumps({"status": "completed", "host": "h", "pid": 1, "heartbeat": "2026-01-01"}))
    assert is_completed(run, [override]) is completed
