"""A sweep's folder: the list of its jobs, and the states of their run directories."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rlrun.config.expansion import Job
from rlrun.config.overrides import NUMBER, SUBDIR
from rlrun.core import files
from rlrun.core.errors import ConfigError, RunDirError, printable
from rlrun.core.files import NOTE_BYTES, head, known, read_bytes
from rlrun.runs import lock as locks
from rlrun.runs.directory import RunDir, failures
from rlrun.runs.progress import counted_updates, number_of
from rlrun.runs.trust import remember

State = Literal["pending", "running", "completed", "failed", "pruned"]
PATIENCE = 60.0  # seconds to wait while another process adds jobs
OWN = re.compile(r"logs|launches|.*\.(json|jsonl|lock|journal)")  # the sweep's own files and folders
KEY = re.compile(r"\w[\w-]{0,63}", re.ASCII)
BUDGET = re.compile(r"stop\.[a-z_]+=[0-9][0-9_.e+-]{0,31}", re.ASCII)


class JobStatus(NamedTuple):
    """The state of a job.

    Attributes:
        job: the job.
        state: of its run directory; a failed job with attempts left is pending.
        attempts: number of failed attempts.
        error: reason of the last failure.
    """

    job: Job
    state: State
    attempts: int = 0
    error: str | None = None


class SweepDir:
    """A sweep's folder, with its list of jobs.

    Several processes may read it and add jobs, on all machines that share the folder.

    Args:
        path: of the folder.
        retries: number of further attempts after a failure.
    """

    def __init__(self, path: Path, retries: int = 0) -> None:
        self.path = path.absolute()
        self.about = self.path / "sweep.json"
        self.list = self.path / "jobs.jsonl"
        self.retries = retries
        self._listed: tuple[object, list[Job]] = None, []
        self._added: dict[str, Job] = {}  # jobs that this process added, with their composed configs
        self._runs: dict[str, RunDir] = {}
        self._ended: dict[str, tuple[object, JobStatus]] = {}

    def jobs(self) -> list[Job]:
        """Return all jobs in the order in which they were added.

        Raises:
            RunDirError: the list is missing or damaged.
        """
        try:
            about = self.list.stat()
        except FileNotFoundError:
            message = f"{self.path} has no jobs.jsonl: another version of rlrun made this sweep; begin another one"
            raise RunDirError(message) from None
        stamp = about.st_mtime_ns, about.st_ino, about.st_size
        if self._listed[0] != stamp:
            jobs = [_job(line, self.list) for line in self.lines()]
            self._require_one_each(jobs)
            self._listed = stamp, [added if (added := self._added.get(job.key)) == job else job for job in jobs]
        return self._listed[1]

    def lines(self) -> list[bytes]:
        """Return the lines of jobs.jsonl, which determine what jobs build, and where."""
        return read_bytes(self.list).splitlines()

    def _require_one_each(self, jobs: Sequence[Job]) -> None:
        """Refuse a list with duplicate jobs or folders, which `add` never writes.

        Raises:
            RunDirError: two lines are of one job, or folders of jobs are not separate.
        """
        twice = next((key for key, count in Counter(job.key for job in jobs).items() if count > 1), None)
        if twice is not None:
            raise RunDirError(f"{self.list} is damaged: two lines are of job {twice}")
        try:
            require_apart(jobs)
        except ConfigError as error:
            raise RunDirError(f"{self.list} is damaged: {error}") from error

    def add(self, jobs: Iterable[Job]) -> None:
        """Add jobs, all or none; a job that is already in the list gets the new overrides.

        Raises:
            ConfigError: two jobs would share a folder.
        """
        jobs = list(jobs)
        with self._alone():
            before = self.jobs() if self.list.exists() else []
            listed = {job.key: job for job in before}
            for job in jobs:
                subdir = job.subdir and job.subdir.replace(NUMBER, str(len(listed)))
                known = listed.get(job.key)
                listed[job.key] = self._added[job.key] = replace(job, subdir=known.subdir if known else subdir)
            self._listed = None, []
            if [*listed.values()] != before or not self.list.exists():
                require_apart(listed.values())
                remember(*(_line(listed[job.key]) for job in jobs))
                files.replace(self.list, "".join(f"{_line(job)}\n" for job in listed.values()).encode())

    def run(self, job: Job) -> RunDir:
        """Return the run directory of a job, which may not exist yet."""
        if job.key not in self._runs:
            self._runs[job.key] = RunDir(self.path / place_of(job))
        return self._runs[job.key]

    def log(self, job: Job) -> Path:
        """Return the file for the output of a job."""
        return self.path / "logs" / f"{job.key}.txt"

    def statuses(self) -> list[JobStatus]:
        """Return the states of all jobs."""
        return [self.status(job) for job in self.jobs()]

    def status(self, job: Job) -> JobStatus:
        """Return the state of a job."""
        run = self.run(job)
        try:
            stamp = job.overrides, self.retries, run.status.stat().st_mtime_ns
        except OSError:
            return JobStatus(job, "running" if run.lock.exists() and locks.is_held(run.lock) else "pending")
        if (ended := self._ended.get(job.key, (None, None)))[0] == stamp and ended[1] is not None:
            return ended[1]
        about, held = known(run.status), locks.is_held(run.lock)
        state: State = "pending"
        attempts, error = failures(about), about.get("error")
        if about.get("status") == "pruned":
            state = "pruned"
        elif held or (held is None and run.read_status()["status"] == "running"):  # without locks, by its heartbeat
            state = "running"
        elif about.get("status") == "completed" and is_completed(run, job.overrides):
            state = "completed"
        elif about.get("status") == "failed" and attempts > self.retries:
            state = "failed"
        status = JobStatus(job, state, attempts, printable(error) if isinstance(error, str) else None)
        if state not in ("pending", "running"):
            self._ended[job.key] = stamp, status
        return status

    def fail(self, job: Job, error: str) -> None:
        """Record a failed attempt whose process could not record it."""
        run = self.run(job)
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_status("failed", error=error)

    def prune(self, keys: Iterable[str]) -> None:
        """Prune those of some jobs that have not ended; the process that runs one will stop it."""
        for status in self._of(keys):
            if status.state in ("pending", "running"):
                self.run(status.job).path.mkdir(parents=True, exist_ok=True)
                self.run(status.job).write_status("pruned")

    def reopen(self, keys: Iterable[str], state: State) -> None:
        """Make those of some jobs that have a state (failed or pruned) pending again, with all their attempts."""
        for status in self._of(keys):
            if status.state == state:
                self.run(status.job).write_status("stopped", attempts=0)

    def _of(self, keys: Iterable[str]) -> list[JobStatus]:
        wanted = set(keys)
        return [self.status(job) for job in self.jobs() if job.key in wanted]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the list of jobs against other processes."""
        path, until = self.path / "jobs.lock", time.monotonic() + PATIENCE
        while (handle := locks.locked(path)) is None:
            if time.monotonic() > until:
                raise RunDirError(f"{path} is locked by another process, which adds jobs; end that process")
            time.sleep(0.01)
        try:
            yield
        finally:
            locks.release(handle)


def place_of(job: Job) -> str:
    """Return the run directory of a job, relative to its sweep's folder."""
    return job.subdir or f"jobs/{job.key}"


def require_apart(jobs: Iterable[Job]) -> None:
    """Refuse jobs whose run directories are equal, nested, or among the sweep's own files.

    Raises:
        ConfigError: naming the folder or folders.
    """
    places = sorted(
        (Path(place_of(job).replace(NUMBER, str(number))).parts, job.label) for number, job in enumerate(jobs)
    )
    for path, label in places:
        if not _is_below(Path(*path)):
            raise ConfigError(f"{SUBDIR}: {label}: wanted a folder below the sweep's own, got {Path(*path)}")
    for (path, label), (other, other_label) in pairwise(places):
        if other[: len(path)] == path:
            raise ConfigError(f"{SUBDIR}: {label} and {other_label} would share {Path(*path)}; put {NUMBER} into it")


def _is_below(path: Path) -> bool:
    """Return True if a path stays inside a sweep's folder, apart from its own files."""
    names = path.parts
    plain = all(name.isprintable() and name != ".." and len(os.fsencode(name)) < 256 for name in names)
    return bool(names) and plain and not path.is_absolute() and OWN.fullmatch(names[0]) is None


def _line(job: Job) -> str:
    line = {"key": job.key, "overrides": job.overrides, "label": job.label}
    return json.dumps(line | ({} if job.subdir is None else {"subdir": job.subdir}))


def _job(line: bytes, path: Path) -> Job:
    """Parse a line of jobs.jsonl.

    Raises:
        RunDirError: the line is damaged.
    """
    try:
        entry: dict[str, Any] = json.loads(line)
        job = Job(entry["key"], tuple(entry["overrides"]), entry["label"], subdir=entry.get("subdir"))
        texts = (job.key, job.label, place_of(job), *job.overrides)
        if (
            isinstance(entry["overrides"], list)
            and all(isinstance(text, str) for text in texts)
            and KEY.fullmatch(job.key)
        ):
            return replace(job, label=printable(job.label))
    except (KeyError, TypeError, ValueError, RecursionError):
        pass
    raise RunDirError(f"{path} is damaged: a line of it is not a job")


def is_completed(run: RunDir, overrides: Sequence[str]) -> bool:
    """Return True if a run's summary says that it was completed, and its budget is at least that of the overrides."""
    summary = known(run.summary)
    if summary.get("status") != "completed":
        return False
    budget = [override for override in overrides if BUDGET.fullmatch(override)]
    recorded = head(run.overrides, NOTE_BYTES).decode(errors="replace").splitlines()
    if summary.get("stopped_by") is None or all(override in recorded for override in budget):
        return True
    evaluation = summary.get("evaluation")
    reached = {**summary, "mean_return": evaluation.get("mean_return") if isinstance(evaluation, dict) else None}
    reached["updates"] = counted_updates(summary)
    limits = (override.removeprefix("stop.").split("=") for override in budget)
    with suppress(ValueError):
        return any((number_of(reached.get(name)) or 0.0) >= float(limit) for name, limit in limits)
    return False
