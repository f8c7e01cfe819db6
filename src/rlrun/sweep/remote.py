"""Jobs that a scheduler starts on other machines: what its launchers have in common.

The scheduler starts a remote runner, which starts the job's process. The machines share only the sweep's folder.
The coordinator and the remote runners communicate by marker files: empty files in a launch's folder, named
`<job id>.<marker>`. A marker exists or not, so it is never half written. One listing of the folder covers all jobs.

    begun         the job's process runs                                     made by the remote runner
    again         it ended before its machine is taken away; see its run
    leave, kill   it shall save and end; it shall be killed                  made by the coordinator

The scheduler keeps what a remote runner returns, the job's exit code.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlrun.config.expansion import Job
from rlrun.core.errors import RunDirError
from rlrun.runs.files import open_own, reason
from rlrun.runs.processes import handled
from rlrun.sweep import children
from rlrun.sweep.children import STOPPED
from rlrun.sweep.job_store import Entry, JobStore, Task
from rlrun.sweep.local import VISIBLE, Tasks, work

PAUSE = 0.1  # seconds between two polls of a job's process
HEAR = 1.0  # … of its markers
LOOK = 0.5  # … of the markers of all jobs, by the coordinator
LATE = 5.0  # seconds that files may take from one machine to another
GRACE = 10.0  # seconds in which a remote runner ends a process; then the scheduler is asked to
FAILED, KILLED = 1, -9


@dataclass
class RemoteRunner:
    """Called on the other machine; returns the exit code of the job's process.

    It waits for the end of that process, follows the coordinator's markers, and saves the job when the scheduler takes
    the machine away. It outlives the coordinator; the job's process does not outlive it.

    Attributes:
        task: the job.
        markers: the folder of the markers; the coordinator makes it, under a random name.
        job_id: that the names of the job's markers begin with.
        place: the folder in which the coordinator was started; relative paths count from it.
        paths: where the coordinator imports from.
        command: of the coordinator; a run records it.
    """

    task: Task
    markers: Path
    job_id: str
    place: Path
    paths: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    _child: children.Child | None = field(default=None, init=False)
    _leaving: bool = field(default=False, init=False)

    def marker(self, name: str) -> Path:
        """Return the marker file of a name for this job."""
        return self.markers / f"{self.job_id}.{name}"

    def __call__(self) -> int:
        os.chdir(self.place)
        sys.path += [path for path in self.paths if path not in sys.path]
        sys.argv[:] = self.command
        if self.marker("leave").exists() or self.marker("kill").exists():
            return STOPPED
        with handled(lambda number, frame: self._ask(), signal.SIGTERM):
            try:
                # A scheduler that starts several jobs in one process gives each its own accelerators.
                variables = {name: os.environ[name] for name in (VISIBLE,) if name in os.environ}
                self._child = children.start(work, self.task, log=self.task.log, variables=variables)
                self.marker("begun").touch()  # it has imported everything
                return self._watch(self._child)
            finally:
                self._ask()  # if it still runs, after an error

    def _watch(self, child: children.Child) -> int:
        """Return the exit code of a process when it ended; follow the coordinator's markers."""
        checked, pending = 0.0, {"leave": self._ask, "kill": child.kill}
        while (code := child.poll()) is None:
            if time.monotonic() - checked > HEAR:
                checked = time.monotonic()
                for name in [name for name in pending if self.marker(name).exists()]:
                    pending.pop(name)()
            time.sleep(PAUSE)
        return code

    def _ask(self) -> None:
        """Ask the job to stop; once, because a second signal interrupts its checkpoint."""
        if self._child is not None and not self._leaving:
            self._leaving = True
            self._child.terminate()

    def checkpoint(self) -> Any:
        """Save the job, as submitit asks when the machine is taken away; return what is to be started again.

        None: the job ended by itself meanwhile.
        """
        self._ask()
        code = STOPPED if self._child is None else self._child.wait()
        self.marker("again").touch()
        self.marker("begun").unlink(missing_ok=True)
        if code not in (STOPPED, -signal.SIGTERM):
            return None
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(replace(self))


class Submitted:
    """A job that a scheduler has, or is about to get."""

    def __init__(self, launcher: Remote, entry: Entry, runner: RemoteRunner) -> None:
        self.entry = entry
        self.runner = runner
        self.handle: Any = None  # of the scheduler, once it was submitted
        self.markers: set[str] = set()  # as of the last look
        self.code: int | None = None  # how it ended, by then
        self.leaving = False
        self.cancelled = False
        self._launcher = launcher
        self._killed: float | None = None  # when it was asked for
        self._missed: float | None = None  # when the scheduler first no longer had it, without a result

    def waits(self) -> bool:
        return "begun" not in self.markers

    def terminate(self) -> None:
        self.leaving = True
        self.runner.marker("leave").touch()

    def kill(self) -> None:
        self._killed = self._killed or time.monotonic()
        self.runner.marker("kill").touch()

    def poll(self) -> int | None:
        self._launcher.look()
        return self.code

    def look(self) -> int | None:
        """Return the exit code; None while it runs."""
        outcome = None if self.handle is None else self._launcher.outcome(self.handle)
        if isinstance(outcome, int):
            return outcome
        if self._killed is not None and time.monotonic() - self._killed > GRACE:
            self._launcher.cancel([self.handle])
            return KILLED
        if self.leaving and self.waits() and (self.handle is None or self.cancelled):
            return STOPPED
        if outcome is None:
            return None
        self._missed = self._missed or time.monotonic()
        if time.monotonic() - self._missed < LATE:  # its result may still arrive
            return None
        if self.waits() and (self.leaving or "again" in self.markers):
            return STOPPED
        with suppress(RunDirError), os.fdopen(open_own(self.runner.task.log), "a", encoding="utf-8") as log:
            log.write(f"rlrun: {outcome}\n")
        return FAILED


class Remote(ABC):
    """Hand jobs to a scheduler, all pending ones at a time, and follow them by marker files.

    Args:
        tasks: of the sweep.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        # A new folder, so that no file in it was planted for the scheduler.
        self.launches = tasks.folder / "launches" / uuid.uuid4().hex
        self.markers = self.launches / "notes"
        try:
            self.markers.mkdir(parents=True)
        except OSError as error:
            raise RunDirError(f"{self.markers} cannot be made: {reason(error)}") from error
        self._jobs: list[Submitted] = []
        self._number = 0
        self._next = 0.0

    @abstractmethod
    def submit(self, runners: Sequence[RemoteRunner], entries: Sequence[Entry]) -> Sequence[Any]:
        """Have remote runners started; return a handle for each."""

    @abstractmethod
    def outcome(self, handle: Any) -> int | str | None:
        """Return what a remote runner returned, or how the scheduler lost it; None while it waits or runs."""

    @abstractmethod
    def cancel(self, handles: Sequence[Any]) -> None:
        """Cancel remote runners that wait, and end those that run."""

    @abstractmethod
    def workers(self, jobs: Iterable[Entry | Job]) -> int:
        """Return how many of these jobs to submit at a time."""

    def close(self) -> None:
        """Release the scheduler."""

    def start(self, entry: Entry, slot: int) -> Submitted:
        """Take a job; it is submitted with all others that are taken before the next look."""
        self._number += 1
        task, paths = self.tasks.task(entry), tuple(path for path in sys.path if path)
        runner = RemoteRunner(task, self.markers, f"{entry.key}-{self._number}", Path.cwd(), paths, tuple(sys.argv))
        self._jobs.append(Submitted(self, entry, runner))
        self._next = 0.0
        return self._jobs[-1]

    def look(self) -> None:
        """Submit new jobs, cancel queued ones that are to stop, and note which have ended; at most twice a second."""
        if time.monotonic() < self._next:
            return
        new = [job for job in self._jobs if job.handle is None and not job.leaving]
        handles = self.submit([job.runner for job in new], [job.entry for job in new]) if new else []
        for job, handle in zip(new, handles, strict=True):
            job.handle = handle
        markers: dict[str, set[str]] = defaultdict(set)
        for path in self.markers.glob("*"):  # none if another coordinator has removed the folder
            job_id, _, marker = path.name.partition(".")
            markers[job_id].add(marker)
        for job in self._jobs:
            job.markers = markers[job.runner.job_id]
        unwanted = [job for job in self._jobs if job.leaving and job.waits() and job.handle and not job.cancelled]
        if unwanted:
            self.cancel([job.handle for job in unwanted])
        for job in unwanted:
            job.cancelled = True
        for job in self._jobs:
            job.code = job.look()
        self._jobs = [job for job in self._jobs if job.code is None]
        self._next = time.monotonic() + LOOK


def remove_launches(launches: Path, job_store: JobStore) -> None:
    """Remove the files of launchers once all jobs of the sweep are done; those of a failed job may show why."""
    # Listed first: a coordinator adds its jobs before it makes a folder.
    folders = [path for path in launches.glob("*") if path.is_dir() and not path.is_symlink()]
    if all(entry.state in ("completed", "pruned") for entry in job_store.entries()):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)  # a file that is open on a network's disk may stay
