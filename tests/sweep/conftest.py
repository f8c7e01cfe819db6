"""The status of a job; jobs without a process."""

import json
import threading

import pytest

from rlrun.config.expansion import Job
from rlrun.sweep.command import JobCommand
from rlrun.sweep.directory import JobStatus, SweepDir
from rlrun.sweep.launchers import Local
from rlrun.sweep.scheduler import Limits, schedule


def job(key, *overrides, label=None):
    return Job(key, overrides, f"seed={key}" if label is None else label)


def status(key, state="pending", error=None, overrides=()):
    """Return the status of a job."""
    return JobStatus(job(key, *overrides), state, 0, error)


@pytest.fixture
def sweep_dir(tmp_path):
    return SweepDir(tmp_path)


def complete(run):
    """Leave what a run leaves that is completed."""
    run.path.mkdir(parents=True, exist_ok=True)
    run.summary.write_text(json.dumps({"status": "completed"}))
    run.write_status("completed")
    return 0


class Idle:
    """A job without a process, which counts how often it is asked to stop; poll returns its exit code, or None."""

    def __init__(self, poll=lambda: 0):
        self.poll, self.asked, self.killed = poll, 0, 0

    def terminate(self):
        self.asked += 1

    def kill(self):
        self.killed += 1


@pytest.fixture
def scheduled(sweep_dir, monkeypatch):
    """Schedule some jobs, `key0`, `key1`, …, each of which a function starts; return the exit code."""

    def run(start, *, jobs=1, workers=None, limits=None, show=lambda statuses: None, search=None):
        sweep_dir.add(job(f"key{number}") for number in range(jobs))
        sweep_dir.retries = limits.retries if limits else 0
        launcher = Local(sweep_dir.path)
        monkeypatch.setattr(launcher, "start", start)
        options = {"workers": workers or jobs, "limits": limits or Limits(), "show": show, "search": search}
        return schedule(sweep_dir, launcher, lambda job: command(sweep_dir, job), **options)

    return run


def command(sweep, job):
    """Return the command of a job."""
    return JobCommand(job, sweep.run(job).path, sweep.log(job))


@pytest.fixture
def meanwhile():
    """Call a function in a thread while this one runs a sweep."""
    threads = []

    def start(act):
        threads.append(threading.Thread(target=act))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()
