"""What a coordinator starts, what it says to its jobs, and how often; the jobs are none."""

import json
import os
import signal
import time

import pytest

from rlrun.config.expansion import Job
from rlrun.runs import processes, progress
from rlrun.runs.directory import RunDir
from rlrun.sweep import coordinator
from rlrun.sweep.coordinator import Limits, is_completed

from .conftest import Idle


@pytest.fixture
def believed(monkeypatch):
    """Let jobs that are none be completed where they say so."""
    monkeypatch.setattr(coordinator, "is_completed", lambda run, overrides: True)


def refuse(entry, slot):
    """Be a machine without room for the first job; the others are over at once."""
    if entry.key == "key0":
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return Idle()


@pytest.mark.usefixtures("believed")
def test_a_job_that_cannot_be_started_fails_alone(coordinator_of, job_store):
    assert coordinator_of(refuse, jobs=3, workers=2).run() == 1
    assert [entry.state for entry in job_store.entries()] == ["failed", "completed", "completed"]
    assert job_store.entries()[0].error.startswith("it cannot be started: ")


class Leaving(Idle):
    """A job that leaves at the third look after it was asked to."""

    def __init__(self):
        super().__init__(self.look)
        self.looks = 3

    def look(self):
        self.looks -= self.asked > 0
        return 75 if self.looks <= 0 else None


@pytest.mark.parametrize(
    ("numbers", "during", "twice", "asked"),
    [
        ([signal.SIGTERM], 2, processes.TWICE, [1, 1]),  # while the second of four jobs is begun
        ([signal.SIGTERM, signal.SIGINT], 1, processes.TWICE, [1]),  # at once: they are one
        ([signal.SIGTERM, signal.SIGTERM], 1, 0.0, [2]),  # the second one is passed on
    ],
)
def test_a_signal_stops_all_jobs_that_were_begun(numbers, during, twice, asked, coordinator_of, monkeypatch):
    monkeypatch.setattr(coordinator, "TWICE", twice)
    begun = []

    def start(entry, slot):
        begun.append(Leaving())
        for number in numbers if len(begun) == during else ():
            os.kill(os.getpid(), number)
        return begun[-1]

    assert coordinator_of(start, jobs=4).run() == 75
    assert [job.asked for job in begun] == asked


def test_a_job_that_is_left_is_told_once(coordinator_of, job_store, monkeypatch):
    monkeypatch.setattr(coordinator, "BEAT", 0.0)

    class Source:
        """A search that has pruned what it has."""

        def look(self, *, news):
            return {entry.key for entry in job_store.entries() if entry.state == "pruned"}

        def offer(self):
            return False

        def over(self):
            return True

    job = Leaving()

    def start(entry, slot):
        job_store.prune([entry.key])
        return job

    assert coordinator_of(start, source=Source()).run() == 0
    assert job.asked == 1


def test_a_job_that_waits_is_not_hung_and_shown_as_queued(coordinator_of, monkeypatch):
    begun, shown = time.monotonic(), []
    monkeypatch.setattr(progress, "SILENT", 0.4)
    monkeypatch.setattr(coordinator, "WATCH", 0.0)
    # Its files may take a moment more than its exit code.
    monkeypatch.setattr(coordinator, "is_completed", lambda run, overrides: time.monotonic() > begun + 1.5)
    queued = Idle(lambda: None if queued.waits() else 0, lambda: time.monotonic() < begun + 1.0)

    def show(entries):
        shown.append(entries[0].state)

    assert coordinator_of(lambda entry, slot: queued, limits=Limits(stall=0.4), show=show).run() == 0
    assert (shown[0], shown[-1]) == ("queued", "completed")


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
def test_only_unfinished_jobs_are_started(status, overrides, state, tmp_path, coordinator_of, job_store):
    run = RunDir(tmp_path / "jobs" / "key0")
    run.path.mkdir(parents=True)
    run.write_status(status)
    run.status.write_text(json.dumps({**json.loads(run.status.read_text()), "host": "elsewhere"}))
    run.overrides.write_text("algorithm=dqn\nstop.env_steps=300\n")
    run.summary.write_text(json.dumps({"status": status, "stopped_by": "env_steps", "env_steps": 300}))
    job_store.add([Job("key0", ("algorithm=dqn", *overrides), "")])
    runner = coordinator_of(refuse, jobs=0)
    runner._begin(job_store.claim(runner.owner), 0)
    assert [entry.state for entry in job_store.entries()] == [state]
    assert job_store.claim("other") is None


@pytest.mark.parametrize(
    ("override", "summary", "completed"),
    [
        ("stop.mean_return=5", {"evaluation": {"mean_return": 6.0}}, True),
        ("stop.mean_return=5", {"evaluation": {"mean_return": 4.0}}, False),
        ("stop.mean_return=5", {"evaluation": "text"}, False),
        ("stop.mean_return=5", {"evaluation": {"mean_return": "a"}}, False),
        ("stop.updates=1e+-", {"updates": 9}, False),
        ("stop.updates=7", {"updates": 9, "group_updates": {"default": 7}}, True),
        ("stop.updates=7", {"updates": 9, "group_updates": {"default": 5}}, False),
        ("stop.updates=7", {"updates": 9, "group_updates": {"default": "5"}}, True),
        ("stop.updates=7", {"updates": 9, "group_updates": 3}, True),
    ],
)
def test_foreign_summaries_stop_no_sweep(override, summary, completed, tmp_path):
    run = RunDir.claim(tmp_path / "run")
    run.summary.write_text(json.dumps({"status": "completed", "stopped_by": "stop.updates", **summary}))
    run.write_status("completed")
    assert is_completed(run, [override]) is completed
