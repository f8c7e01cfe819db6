"""What a scheduler starts, what it says to its jobs, and how often; the jobs are none."""

import os
import signal
import time

import pytest

from rlrun.core import processes
from rlrun.runs import lock as locks
from rlrun.runs import progress
from rlrun.runs.directory import RunDir
from rlrun.sweep import scheduler
from rlrun.sweep.scheduler import Limits

from .conftest import Idle, complete


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Let nobody wait for jobs that take no time."""
    for name, seconds in {"PAUSE": 0.0, "REST": 0.01, "WATCH": 0.0, "LATE": 0.1, "AGAIN": 0.0}.items():
        monkeypatch.setattr(scheduler, name, seconds)


def completes(command, slot):
    return Idle(lambda: complete(RunDir(command.run)))


def states(sweep):
    return [status.state for status in sweep.statuses()]


def test_a_job_that_cannot_be_started_fails_alone(scheduled, sweep_dir):
    def start(command, slot):
        if command.job.key == "key0":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return completes(command, slot)

    assert scheduled(start, jobs=3, workers=2) == 1
    assert states(sweep_dir) == ["failed", "completed", "completed"]
    assert sweep_dir.statuses()[0].error.startswith("it cannot be started: ")


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
def test_a_signal_stops_all_jobs_that_were_begun(numbers, during, twice, asked, scheduled, monkeypatch):
    monkeypatch.setattr(scheduler, "TWICE", twice)
    begun = []

    def start(command, slot):
        begun.append(Leaving())
        for number in numbers if len(begun) == during else ():
            os.kill(os.getpid(), number)
        return begun[-1]

    assert scheduled(start, jobs=4) == 75
    assert [job.asked for job in begun] == asked


def test_a_pruned_job_is_stopped_once_and_not_started_again(scheduled, sweep_dir):
    begun = []

    def start(command, slot):
        begun.append(Leaving())
        sweep_dir.prune([command.job.key])
        return begun[-1]

    assert scheduled(start) == 0
    assert [job.asked for job in begun] == [1]
    assert states(sweep_dir) == ["pruned"]


def test_failed_attempts_are_counted_and_stopped_ones_are_not(scheduled, sweep_dir):
    codes, run = [75, 1, -9, 0, 75, 1], RunDir(sweep_dir.path / "jobs" / "key0")
    run.path.mkdir(parents=True)

    def start(command, slot):
        code = codes.pop(0)
        if len(codes) == 4:  # as training itself does
            run.write_status("failed", error="the arm broke")
        return Idle(lambda: code)

    assert scheduled(start, limits=Limits(retries=2)) == 1
    (status,) = sweep_dir.statuses()
    assert (status.state, status.attempts, codes) == ("failed", 3, [75, 1])
    assert status.error == "its process left with exit code 0 before the run was completed"


def test_a_job_that_another_process_has_is_left_to_it(scheduled, sweep_dir):
    """The first process here finds the lock taken; the second one is started when it is free."""
    run, codes = RunDir(sweep_dir.path / "jobs" / "key0"), []
    run.path.mkdir(parents=True)
    lock = locks.locked(run.lock)
    shown = []

    def show(statuses):
        shown.append(statuses[0].state)
        if len(shown) == 3:
            locks.release(lock)

    def start(command, slot):
        codes.append(75 if not codes else complete(run))
        return Idle(lambda: codes[-1])

    assert scheduled(start, show=show) == 0
    assert shown[:3] == ["running"] * 3
    assert codes in ([75], [75, 0])


@pytest.mark.parametrize("option", [1, 2])
def test_a_sweep_gives_up_after_so_many_failures(option, scheduled, sweep_dir):
    assert scheduled(lambda command, slot: Idle(lambda: 1), jobs=4, workers=1, limits=Limits(failures=option)) == 1
    assert states(sweep_dir) == ["failed"] * option + ["pending"] * (4 - option)


@pytest.mark.parametrize("locked", [True, False])
def test_a_job_is_hung_that_is_silent_and_not_one_that_waits(locked, scheduled, sweep_dir, monkeypatch):
    monkeypatch.setattr(progress, "SILENT", 0.2)
    run, begun = RunDir(sweep_dir.path / "jobs" / "key0"), time.monotonic()
    run.path.mkdir(parents=True)

    def poll():
        if job.killed:
            return -9
        return complete(run) if time.monotonic() > begun + 0.6 else None

    job = Idle(poll)

    def start(command, slot):
        lock = locks.locked(run.lock) if locked else None
        job.kill = lambda: (locks.release(lock), setattr(job, "killed", 1))  # as the end of a process does
        return job

    assert scheduled(start) == (1 if locked else 0)
    (status,) = sweep_dir.statuses()
    assert (status.error or "").startswith("no sign of life for " if locked else "")
    assert status.state == ("failed" if locked else "completed")
