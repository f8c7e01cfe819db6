"""A sweep of somebody else; jobs without a process."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from rlrun.config.expansion import Job
from rlrun.sweep.coordinator import Coordinator, Limits
from rlrun.sweep.job_store import Entry, JobStore


def entry(key, state="pending", error=None, overrides=()):
    """Return a job as the store has it."""
    return Entry(key, f"seed={key}", tuple(overrides), state, None, 1, None, error)


@pytest.fixture
def foreign(project):
    """A sweep's folder, as yet without jobs."""
    Path("s").mkdir()
    Path("s/sweep.json").write_text("{}")
    return Path("s")


class Idle:
    """A job without a process, which counts how often it is asked to stop.

    poll: returns its exit code, or None; waits: returns whether it is queued.
    """

    def __init__(self, poll=lambda: 0, waits=lambda: False):
        self.poll, self.waits, self.asked = poll, waits, 0

    def terminate(self):
        self.asked += 1

    def kill(self):
        raise AssertionError("nothing hangs")


@pytest.fixture
def job_store(tmp_path):
    return JobStore(tmp_path / "jobs.sqlite")


@pytest.fixture
def coordinator_of(tmp_path, job_store):
    """Make a coordinator of some jobs, `key0`, `key1`, …, each of which a function starts."""

    def make(start, *, jobs=1, workers=None, limits=None, show=lambda entries: None, source=None):
        job_store.add([Job(f"key{number}", (), "") for number in range(jobs)])
        options = {"workers": workers or jobs, "limits": limits or Limits(), "show": show, "source": source}
        return Coordinator(tmp_path, job_store, SimpleNamespace(start=start), **options)

    return make
